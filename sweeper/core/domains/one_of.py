"""The domain `one_of`."""

from sweeper.core.domains.base import domain
from sweeper.core.domains.nodes import Members
from sweeper.core.domains.values import Plain


@domain("one_of")
class Branch(Members):
    """One of the branches, each a mapping with its own domains, all equally likely."""

    @classmethod
    def member_fault(cls, member: Plain) -> tuple[str, str] | None:
        """Return the rule that a plain value breaks, and its remedy."""
        if isinstance(member, (dict, str)):
            return None
        return f"one_of chooses among mappings, not {member!r}", "use choice for plain values"
