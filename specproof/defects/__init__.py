"""Known defects of speculative decoders, each as a small mutation of a right one."""
