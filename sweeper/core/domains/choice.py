"""The domain `choice`."""

from sweeper.core.domains.base import Members


class OneMember(Members, kind="choice"):
    """One of the members, all equally likely; a value that stands twice is twice as likely."""
