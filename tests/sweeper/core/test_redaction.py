"""Secrets never survive; everything else does."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sweeper.core.display import redact, redact_arguments

SECRET = "hunter2"
LEAKS = [
    f"postgresql://mlflow:{SECRET}@db:5432/mlflow",
    f"postgresql+psycopg2://mlflow:{SECRET}@db/mlflow?sslmode=require",
    f"postgresql://mlflow:p@ss{SECRET}@db/mlflow",
    f"s3://AKIA:ab/cd{SECRET}@bucket/results",
    f"https://{SECRET}@example.org/",
    f"https://example.org/?token={SECRET}&page=2",
    f"s3://bucket/results?secret_key={SECRET}&endpoint_override=localhost:9000",
    f"MLFLOW_TRACKING_PASSWORD={SECRET}",
    f"--password={SECRET}",
    f"password: {SECRET}",
    f"api-key = {SECRET}",
    f"AWS_SECRET_ACCESS_KEY={SECRET} and so on",
    f'{{"password": "{SECRET}"}}',
    f"{{'auth_token': '{SECRET}'}}",
    f"RAY_AUTH_TOKEN={SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"Response body: 'Basic dXNlcjp{SECRET}aHVudGVyMg== may not do this'",
]
HARMLESS = [
    "sweeper run search_spaces/quickstart.yaml --set samples=8",
    "sqlite:////results/mlflow.db",
    "http://localhost:5000",
    "basic authentication is needed; the bearer of this",
    "s3://bucket/results?region=eu-west-1",
    "γ = 3.0, lr = 0.1: mail me at someone@example.org",
    "/home/user/results/quickstart",
    "",
]


@pytest.mark.parametrize("text", LEAKS)
def test_secrets_are_starred_out(text):
    assert SECRET not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_stays(text):
    assert redact(text) == text


def test_what_stands_around_a_secret_stays():
    assert redact(f"postgresql://u:{SECRET}@db:5432/mlflow") == "postgresql://***@db:5432/mlflow"
    assert redact(f"a=1 token={SECRET}&b=2") == "a=1 token=***&b=2"


@given(st.text(max_size=30))
def test_redacting_twice_changes_nothing(text):
    assert redact(redact(text)) == redact(text)


@given(st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=4, max_size=20))
def test_any_password_in_an_address_goes(secret):
    assert f":{secret}@" not in redact(f"mysql://user:{secret}@host/db")


def test_a_secret_may_be_an_argument_of_its_own():
    arguments = ["sweeper", "run", "a.yaml", "--api-token", SECRET, "--output", "out", "--password", "--name", "x"]
    arguments += [f"--secret={SECRET}", "plain"]
    starred = [*arguments[:4], "***", *arguments[5:10], "--secret=***", "plain"]
    assert redact_arguments(arguments) == starred
    assert redact_arguments([]) == []
