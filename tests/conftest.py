"""Settings that every test runs under."""

from hypothesis import HealthCheck, settings

# derandomize: a red run is the same red run tomorrow. No deadline and no too_slow: the machine may be busy with others.
settings.register_profile(
    "project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("project")
