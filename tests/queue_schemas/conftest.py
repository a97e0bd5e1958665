"""Hypothesis on a machine whose cores are shared: examples count, the clock does not."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "shared-cores", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared-cores")
