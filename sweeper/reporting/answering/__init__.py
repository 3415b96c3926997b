"""What the first screen and the figures of lines answer: finalists, the questions about them, and what would decide.

`matrix` has the finalists' values and verdicts and `finalists` their rows. `questions` and `along` ask about lines of
values, `answers` has the types of the result, and `advice` says what to do next. `reporting.sentences` makes the words.
"""
