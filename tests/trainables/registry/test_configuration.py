import pickle

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from trainables.registry.configuration import Configuration

SCALARS = st.one_of(st.booleans(), st.integers(-1000, 1000), st.floats(allow_nan=False), st.text(max_size=5))
KEYS = st.text("abc", min_size=1, max_size=3)
VALUES = st.recursive(
    st.dictionaries(KEYS, st.one_of(SCALARS, st.lists(SCALARS, max_size=3)), max_size=4),
    lambda inner: st.dictionaries(KEYS, st.one_of(SCALARS, inner), max_size=4),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
def test_a_configuration_is_its_values_whatever_the_order_of_keys(values):
    def reversed_keys(value):
        return {k: reversed_keys(value[k]) for k in reversed(value)} if isinstance(value, dict) else value

    made = Configuration(values)
    assert made.plain() == values and Configuration(made.plain()) == made == pickle.loads(pickle.dumps(made))
    again = Configuration(reversed_keys(values))
    assert (again, hash(again), again.digest) == (made, hash(made), made.digest) and len(made.digest) == 16
    assert made.replaced("new", 1).digest != made.replaced("new", 2).digest


def test_columns_and_paths():
    values = {
        "loss": {"name": "focal", "gamma": 3.0},
        "optimizer": {"name": "sgd", "milestones": [150, 250]},
        "flag": True,
    }
    made = Configuration(values)
    assert made.columns == {
        "config_loss_name": "focal",
        "config_loss_gamma": 3.0,
        "config_optimizer_name": "sgd",
        "config_optimizer_milestones": "[150, 250]",
        "config_flag": True,
    }
    assert made.at("optimizer.milestones") == (150, 250) and made.at("flag.x") is made.at("rate") is None
    assert made.replaced("loss.gamma", 1.0)["loss"] == {"name": "focal", "gamma": 1.0}
    assert made.replaced("flag", False) == {**values, "flag": False, "optimizer": made["optimizer"]}


def test_a_configuration_cannot_be_changed():
    made = Configuration({"loss": {"name": "focal"}})
    with pytest.raises(TypeError):
        made["loss"] = None  # type: ignore[index]
    assert Configuration({"a": 1}) != Configuration({"a": 1.0}), "two digests"
