"""Our files and theirs: the 0.0.x package beside this one."""
