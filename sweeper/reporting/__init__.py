"""What a sweep found, said to people: the first screen, the end of a run, and pages that hold all they show.

Imports what reads tables (`sweeper.results`) and computes with them; neither journal nor state, Ray nor trackers.
"""
