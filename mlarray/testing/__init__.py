"""What a test of a source, a sink or a transform can start from; for this package and for those that extend it.

``strategies.py`` draws values with Hypothesis, ``conformance.py`` holds test classes to subclass. Needs the ``test`` extra.
"""
