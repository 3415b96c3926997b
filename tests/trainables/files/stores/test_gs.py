"""Google's buckets: accounts from the environment, none for a server of one's own."""

from trainables.files.stores.base import KINDS, client_settings


def test_a_server_of_ones_own_is_asked_without_an_account() -> None:
    bucket = KINDS["gs"].bucket("images", {"endpoint_override": "localhost:4443", "scheme": "http"}, client_settings())
    assert bucket.config == {"bucket": "images", "base_url": "http://localhost:4443", "skip_signature": "true"}
