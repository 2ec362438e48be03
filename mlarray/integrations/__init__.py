"""What other packages expect to find; each module stands alone and imports no package that its caller has not."""
