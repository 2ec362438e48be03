"""What a test of a source, a sink or a transform can start from; for this package and for those that extend it.

``strategies.py`` draws values with Hypothesis, ``conformance.py`` holds test classes to subclass for sources and sinks,
``transforms.py`` those for transforms, with the proof that a patch of any chain is cut from the whole. Needs the ``test`` extra.
"""
