"""Voxels without a format: the Source and Sink protocols, raw and generated sources, tiles, and the copy loop."""
