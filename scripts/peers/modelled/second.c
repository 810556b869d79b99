// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The same devices once more, for a machine with two disks: to be loaded with another disk_name. */
#include "modelled.c"
