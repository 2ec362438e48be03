"""File formats: one module each, holding reader and writer; :mod:`mlarray.formats.registry` finds the right one."""
