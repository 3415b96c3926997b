"""The domain `choice`."""

from sweeper.core.domains.base import domain
from sweeper.core.domains.nodes import Members


@domain("choice")
class OneMember(Members):
    """One of the members, all equally likely; a value that stands twice is twice as likely."""
