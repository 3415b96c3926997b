"""What is suggested for a name that there is not."""

from __future__ import annotations

from trainables.registry.nearest import did_you_mean, nearest


def test_the_nearest_name_or_all_names():
    assert did_you_mean("gama", ("gamma", "rate")) == "; did you mean 'gamma'?"
    assert did_you_mean("zzz", ("gamma", "rate")) == "; known: gamma, rate"
    assert did_you_mean("zzz", ()) == ""


def test_the_nearest_name_alone():
    assert nearest("quickstrat", {"quickstart": 1, "loss_families": 2}) == "; did you mean 'quickstart'?"
    assert nearest("zzz", ["gamma"]) == nearest("gamma", []) == ""
