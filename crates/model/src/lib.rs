//! Models of disks: mechanics, queue, built-in cache, and the drive files.
