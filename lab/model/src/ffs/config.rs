//! Options with which a file system is made, and the costs of its host.
//!
//! The defaults are those of Table 1 of Zhu and Hu (2003). Where the table is silent, the default is that of 4.4BSD, and the
//! field says so.

use dcd_engine::Nanos;

/// Fragments in a block. FFS allows 1 to 8; the bitmaps here hold one block in a byte.
pub(crate) const BLOCK_FRAGMENTS: u32 = 8;
/// Directory entries do not cross chunks of this size, so that a change of a directory is atomic (McKusick 1984).
pub(crate) const DIRECTORY_CHUNK: u32 = 512;

/// Blocks that the inode itself points to. Table 1 names the parameter; 12 is 4.4BSD's.
pub(crate) const DIRECT_BLOCKS: u32 = 12;
/// Space for each inode: 4 fragments, as newfs of 4.4BSD has it.
pub(crate) const BYTES_PER_INODE: u32 = 4 << 10;
/// 4.4BSD's dinode.
pub(crate) const INODE_BYTES: u32 = 128;
/// Time that a program computes before another one has its turn (4.4BSD: 100 ms; Solaris: 20 to 200 ms).
pub(crate) const QUANTUM: Nanos = Nanos::from_millis(100);

/// Times that the processor spends, apart from what programs compute. A time of zero is a cost that is not modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuCosts {
    /// A system call, the search of the buffer cache included (Table 1: 0.01 ms).
    pub system_call: Nanos,
    /// Copying a KiB between the buffer cache and the program (Table 1: 0.01 ms).
    pub copy_per_kib: Nanos,
    /// Additional cost of a call that changes the name space (create, unlink, mkdir, rmdir, rename).
    pub name_change: Nanos,
    /// Searching one block of a directory.
    pub directory_block: Nanos,
    /// Driver, host adapter and interrupt of one block request.
    pub block_request: Nanos,
    /// A write that a cache in the host takes costs this instead.
    pub cached_write: Option<CachedWrite>,
}

/// Cost of a write that goes into memory, and to the disk later with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedWrite {
    /// The cache's own computing: tables and lists.
    pub request: Nanos,
    pub copy_per_kib: Nanos,
}

impl CpuCosts {
    /// Zhu and Hu, Table 1, and nothing else.
    pub const TABLE_1: CpuCosts = CpuCosts {
        system_call: Nanos::from_micros(10),
        copy_per_kib: Nanos::from_micros(10),
        name_change: Nanos::ZERO,
        directory_block: Nanos::ZERO,
        block_request: Nanos::ZERO,
        cached_write: None,
    };

    /// A workstation like that of the DCD paper (Sun Ultra-1 170, Solaris 2.6). The paper states none of these. The first
    /// two are what McVoy and Staelin (1996) published for this class of machine: 5 to 10 us a call, some 85 MB/s of
    /// copying. The others, some ten thousand instructions for a request at 167 MHz, are fitted with what the programs compute
    /// to the paper's shares of the processor (`NUser` in dcd-sim).
    pub const ULTRA_1: CpuCosts = CpuCosts {
        system_call: Nanos::from_micros(10),
        copy_per_kib: Nanos::from_micros(12),
        name_change: Nanos::from_micros(150),
        directory_block: Nanos::from_micros(20),
        block_request: Nanos::from_micros(100),
        cached_write: None,
    };

    /// The Ultra 1 with a cache in its driver. The paper does not state what its cache computes for a request either. Ours
    /// needs 0.3 us for a write beside copying it and its checksum (the example `engine_cost` of dcd-engine), some two
    /// thousand instructions; 20 us are three thousand at 167 MHz.
    pub const ULTRA_1_WITH_CACHE: CpuCosts = CpuCosts {
        cached_write: Some(CachedWrite {
            request: Nanos::from_micros(20),
            copy_per_kib: CpuCosts::ULTRA_1.copy_per_kib,
        }),
        ..CpuCosts::ULTRA_1
    };

    /// Returns the cost of sending a request of a file system.
    pub(crate) fn request(&self, is_write: bool, bytes: u64) -> Nanos {
        match self.cached_write.filter(|_| is_write) {
            Some(cached) => Nanos(cached.request.0 + cached.copy_per_kib.0 * bytes / 1024),
            None => self.block_request,
        }
    }
}

impl Default for CpuCosts {
    fn default() -> Self {
        CpuCosts::TABLE_1
    }
}

/// Rules by which files and directories are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// 4.4BSD's: the end of a small file lies in fragments, every directory goes to a group with few, and a large file
    /// changes the group now and then.
    #[default]
    Bsd,
    /// As ext3 of Linux 2.6: files have whole blocks; only directories of the root are spread, the others stay in the group of
    /// their parent as long as that has about its share of space, inodes and directories (Orlov's allocator); a file
    /// goes on where it is, in windows of blocks that no other file takes from while it is open (from 2.6.10 on).
    Ext3,
}

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FfsConfig {
    /// Table 1: 8 KB. A fragment is an eighth of it.
    pub block_bytes: u32,
    /// Table 1: 64 KB of a file lie together; also the most that one request moves.
    pub cluster_bytes: u32,
    /// Table 1: 16 MB.
    pub group_bytes: u32,
    /// Space that is kept free for the allocator's sake, in percent (newfs: 10).
    pub reserve_percent: u32,
    /// Zhu and Hu vary it from 16 MB to 128 MB.
    pub buffer_cache_bytes: u64,
    /// Memory for metadata beside that, where it has its own: inodes, addresses and bitmaps. Directories are kept with files,
    /// as Solaris reads them through the pages of files (`blkatoff` in its successor's ufs_dir.c).
    pub metadata_cache_bytes: Option<u64>,
    /// Inodes kept in memory (4.4BSD's vnodes; a small machine has some thousand).
    pub inodes_in_memory: u32,
    /// Names kept in the name cache.
    pub names_in_memory: u32,
    pub placement: Placement,
    /// Calls that change names wait until the metadata is on the disk; otherwise it is written later.
    pub synchronous_metadata: bool,
    /// A journal of this size, as ext3 has it with `data=ordered`: metadata goes there first and to its place later (see `journal`).
    /// None if zero. Metadata must not be synchronous then.
    pub journal_bytes: u32,
    /// Read on in a file that is read in order.
    pub read_ahead: bool,
    /// Maximum read-ahead of a reader: a cluster, if absent.
    pub read_ahead_bytes: Option<u32>,
    /// The last close of a file writes what is dirty of its whole blocks, and no call waits: so Solaris ends a cluster that is not
    /// full (`ufs_close` in its successor's ufs_vnops.c). Elsewhere the update daemon finds them.
    pub push_at_close: bool,
    /// The update daemon writes all that is dirty in the course of this time.
    pub update_interval: Nanos,
    /// In how many parts: 4.4BSD writes everything at once; Solaris looks at a sixth of its memory every 5 s (fsflush), and
    /// writes the metadata that has memory of its own when that has been dirty for the whole time (its manual, `autoup`).
    pub update_slices: u32,
    pub cpu: CpuCosts,
}

impl Default for FfsConfig {
    fn default() -> Self {
        FfsConfig {
            block_bytes: 8 << 10,
            cluster_bytes: 64 << 10,
            group_bytes: 16 << 20,
            reserve_percent: 10,
            buffer_cache_bytes: 16 << 20,
            metadata_cache_bytes: None,
            inodes_in_memory: 1024,
            names_in_memory: 1024,
            placement: Placement::Bsd,
            synchronous_metadata: true,
            journal_bytes: 0,
            read_ahead: true,
            read_ahead_bytes: None,
            push_at_close: false,
            update_interval: Nanos::from_secs(30),
            update_slices: 1,
            cpu: CpuCosts::TABLE_1,
        }
    }
}

/// A file system that cannot be: which field, and what it has to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("file system: `{field}` {why}")]
pub struct FfsConfigError {
    pub field: &'static str,
    pub why: String,
}

impl FfsConfig {
    /// The machine of the DCD paper: 128 MB of RAM, of which Solaris gives files and directories most, and other metadata a
    /// fiftieth (Solaris Tunable Parameters Reference Manual, `bufhwm`). It keeps 17 inodes and as many names for each "user"
    /// and 90 more; users are as many as the kernel finds MB of RAM, which is 2 less than there are (NFS Server Performance and
    /// Tuning Guide for Solaris 2.4 to 7, `maxusers`). Before version 8 a cluster was 7 blocks there (`maxcontig`), as early
    /// machines of Sun could not move more than 64 KB at a time.
    pub fn ultra_1() -> FfsConfig {
        const USERS: u32 = 126;
        FfsConfig {
            cluster_bytes: 56 << 10,
            buffer_cache_bytes: 96 << 20,
            metadata_cache_bytes: Some((128 << 20) / 50),
            inodes_in_memory: 17 * USERS + 90,
            names_in_memory: 17 * USERS + 90,
            push_at_close: true,
            update_slices: 6,
            cpu: CpuCosts::ULTRA_1,
            ..FfsConfig::default()
        }
    }

    pub(crate) const fn fragment_bytes(&self) -> u32 {
        self.block_bytes / BLOCK_FRAGMENTS
    }

    pub(crate) const fn cluster_blocks(&self) -> u32 {
        self.cluster_bytes / self.block_bytes
    }

    /// Returns the maximum number of blocks that are read ahead of a reader.
    pub(crate) fn read_ahead_blocks(&self) -> u32 {
        self.read_ahead_bytes.map_or(self.cluster_blocks(), |bytes| (bytes / self.block_bytes).max(1))
    }

    pub(crate) fn validate(&self) -> Result<(), FfsConfigError> {
        let require = |ok: bool, field, why: &str| {
            if ok { Ok(()) } else { Err(FfsConfigError { field, why: why.to_owned() }) }
        };
        let block = self.block_bytes;
        require(
            block.is_power_of_two() && (4096..=65536).contains(&block),
            "block-bytes",
            "must be a power of two from 4096 to 65536",
        )?;
        require(
            self.cluster_bytes.is_multiple_of(block) && self.cluster_bytes > 0,
            "cluster-bytes",
            "must be a multiple of the block",
        )?;
        require(
            self.group_bytes.is_multiple_of(block) && self.group_bytes <= 1 << 28,
            "group-bytes",
            "must be a multiple of the block, and at most 256 MiB",
        )?;
        require(self.reserve_percent < 100, "reserve-percent", "must be below 100")?;
        let whole = self.journal_bytes.is_multiple_of(block) && self.journal_bytes / block != 1;
        require(whole, "journal-bytes", "must be zero, or a multiple of the block and more than one")?;
        let one = self.journal_bytes == 0 || !self.synchronous_metadata;
        require(one, "journal-bytes", "must be zero where metadata is synchronous")?;
        let least = 4 * u64::from(self.cluster_bytes);
        require(self.buffer_cache_bytes >= least, "buffer-cache-bytes", "must hold at least four clusters")?;
        require(
            self.metadata_cache_bytes.is_none_or(|bytes| bytes >= 16 * u64::from(block)),
            "metadata-cache-bytes",
            "must hold at least 16 blocks",
        )?;
        require(self.inodes_in_memory >= 64, "inodes-in-memory", "must be at least 64")?;
        require(self.update_interval > Nanos::ZERO, "update-interval", "must not be zero")?;
        require((1..=1000).contains(&self.update_slices), "update-slices", "must be from 1 to 1000")
    }
}
