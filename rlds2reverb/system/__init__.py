"""The operating system, files and text: helpers of all parts."""
