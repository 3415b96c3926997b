"""The domain `choice`."""

from sweeper.core.domains.base import Members, domain


@domain("choice")
class OneMember(Members):
    """One of the members, all equally likely; a value that stands twice is twice as likely."""
