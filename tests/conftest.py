"""Settings that every test runs under."""

from hypothesis import HealthCheck, settings

# derandomize: a red run is the same red run tomorrow. No deadline and no too_slow: the machine may be busy with others.
settings.register_profile(
    "project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("project")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their length: compressed ones hold the time, and workers must agree on the names of the tests."""
    return f"{argname}-{len(val)}-bytes" if isinstance(val, bytes) else None
