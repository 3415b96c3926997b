"""Who may be told of a sweep, and that nothing written down can hold a webhook's secret."""

from __future__ import annotations

import sys

import pytest
import yaml

from sweeper.core.errors import InvalidSearchSpace, SweeperError
from sweeper.space.loading import build_spec, load_spec
from sweeper.space.notify import (
    Notification,
    asked_by_file,
    folder_of,
    notification_faults,
    option_notifications,
    require_allowed,
    resolve_targets,
)
from tests.sweeper.storage.test_sweeps import SPACE


def _spec(notify):
    return build_spec({**yaml.safe_load(SPACE), "notify": notify})


def _faults(notify):
    with pytest.raises(InvalidSearchSpace) as caught:
        _spec(notify)
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "entries"),
    [
        ("${SWEEP_HOOK}", [{"webhook": "${SWEEP_HOOK}"}]),
        ("http://127.0.0.1:8080/hook", [{"webhook": "http://127.0.0.1:8080/hook"}]),
        ("notify-send 'a sweep'", [{"command": ["notify-send", "a sweep"]}]),
        (
            ["${SWEEP_HOOK}", {"command": ["true"], "on": ["budget"]}],
            [{"webhook": "${SWEEP_HOOK}"}, {"command": ["true"]}],
        ),
        ({"webhook": "https://example.org/${SWEEP_HOOK}/v1"}, [{"webhook": "https://example.org/${SWEEP_HOOK}/v1"}]),
        (None, []),
    ],
)
def test_short_and_long_forms(written, entries):
    found = [entry.model_dump(exclude_none=True, exclude={"on"}) for entry in _spec(written).notify]
    assert found == entries


def test_a_sweep_without_notifications_resolves_as_before():
    assert "notify" not in _spec([]).resolved()
    kept = _spec(["${SWEEP_HOOK}"])
    assert build_spec(kept.resolved()) == kept


SECRETS = [
    "https://hooks.slack.com/services/T024BE7LH/B024BE7LH/s3cr3tT0ken",
    "https://discord.com/api/webhooks/112233445566778899/abcDEF",
    "https://bot:s3cr3t@example.org/hook",
    "https://example.org/hook?key=s3cr3t",
    "https://example.org/hook#s3cr3t",
    "https://example.org/averylongwordthatmaybeakey/s3cr3t",
]


@pytest.mark.parametrize("address", SECRETS)
def test_an_address_that_may_hold_a_secret_is_refused_and_never_repeated(address):
    for message in (_faults([{"webhook": address}]), _faults(address)):
        assert "may contain a secret" in message and "${NAME}" in message and "s3cr3t" not in message.lower()
    with pytest.raises(SweeperError) as caught:
        option_notifications([address])
    assert "s3cr3t" not in str(caught.value).lower()


def test_every_fault_is_reported_at_once_without_its_value():
    message = _faults(
        [
            {"webhook": "ftp://s3cr3t/x"},
            {"command": ["curl", "--token", "s3cr3t"]},
            {"command": ["curl", "${SWEEP_HOOK}"]},
            {"command": []},
            {"webhook": "${SWEEP_HOOK}", "command": ["true"]},
            {},
            {"webhook": ["s3cr3t"]},
            {"webhook": "${SWEEP_HOOK}", "on": ["ends"]},
            {"webhok": "${SWEEP_HOOK}"},
        ]
    )
    assert "s3cr3t" not in message
    for part in (
        "notify[0].webhook: is not an http:// or https:// address",
        "notify[1].command: contains a secret",
        "notify[2].command: runs without a shell",
        "notify[3].command: has no program",
        "notify[4]: must have either webhook or command",
        "notify[5]: must have either webhook or command",
        "notify[6].webhook",
        "notify[7].on[0]",
        "notify[8].webhok: unknown key",
    ):
        assert part in message, (part, message)


def test_the_environment_gives_addresses_and_what_is_missing_is_reported_before_anything_starts(tmp_path):
    wanted = [Notification(webhook="https://example.org/${SWEEP_HOOK}"), Notification(command=[sys.executable, "-V"])]
    targets = resolve_targets(wanted, {"SWEEP_HOOK": "s3cr3t"})
    assert [target.url for target in targets] == ["https://example.org/s3cr3t", ""]
    assert "s3cr3t" not in repr(targets) and targets[0].label == "webhook 1 (example.org)"
    wanted += [Notification(command=["no-such-program-here"]), Notification(webhook="${SWEEP_OTHER}")]
    with pytest.raises(SweeperError) as caught:
        resolve_targets(wanted, {"SWEEP_OTHER": "not an address: s3cr3t"})
    message = str(caught.value)
    for part in (
        "needs SWEEP_HOOK in the driver's environment",
        "'no-such-program-here'",
        "${SWEEP_OTHER} is not an http",
    ):
        assert part in message
    assert "s3cr3t" not in message


def test_the_override_of_a_resume_takes_notifications_away(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SPACE + 'notify: "${SWEEP_HOOK}"\n')
    assert len(load_spec(path).notify) == 1
    assert load_spec(path, ["notify=[]"]).notify == []


def test_a_file_may_name_only_variables_that_are_meant_for_it():
    for written in ("${AWS_SECRET_ACCESS_KEY}", "https://example.org/${HOME}", "https://${SWEEP_HOOK}/${USER}"):
        (fault,) = notification_faults([{"webhook": written}])
        assert "may only name variables that begin with SWEEP_" in str(fault), written
    assert notification_faults([{"webhook": "https://example.org/${SWEEP_HOOK}"}]) == []


def test_what_a_file_asks_for_is_allowed_once_for_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "mine" / "small.yaml"
    path.parent.mkdir()
    path.write_text(SPACE + "notify: [{command: [rm, -rf, x]}, '${SWEEP_HOOK}']\n")
    asked = asked_by_file(load_spec(path).notify, ["seed=3"])
    with pytest.raises(SweeperError, match=r"would run rm -rf x; send to \$\{SWEEP_HOOK\}\n.*--allow-notify") as raised:
        require_allowed(asked, folder_of(path), allowed=False)
    assert str(path.parent) in str(raised.value)
    require_allowed(asked, folder_of(path), allowed=True)
    require_allowed(asked, folder_of(path), allowed=False)
    with pytest.raises(SweeperError, match="--allow-notify"):
        require_allowed(asked, folder_of(tmp_path / "theirs" / "small.yaml"), allowed=False)
    require_allowed([], folder_of(tmp_path), allowed=False)
    assert asked_by_file(asked, ["notify=[true]"]) == [], "whoever types it knows it"
    assert asked_by_file(asked, ["notify[0].on=[end]"]) == asked, "the command is still the file's"
