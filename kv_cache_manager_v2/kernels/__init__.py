"""Page tables of a whole batch, in the shapes that attention kernels take."""
