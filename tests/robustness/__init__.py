"""Damage, deaths, sharing, hostile input: what the guarantees promise."""
