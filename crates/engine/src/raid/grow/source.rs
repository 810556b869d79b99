//! The data of old stripes, read from the members that have it; what one of them cannot give is computed from the others.

use std::collections::BTreeSet;

use crate::raid::grow::band::Band;
use crate::raid::layout::Layout;
use crate::raid::parity::{add_scaled, solve, weight};
use crate::{BlockDevice, IoError, LINE_BYTES, LINE_SECTORS, Lba, SECTOR_BYTES};

const BLOCK: usize = LINE_BYTES as usize;

/// More of a row is missing than the parity makes up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostStripe {
    pub stripe: u64,
}

/// See the module's documentation.
pub struct GrowSource {
    layout: Layout,
    band: Band,
    /// The strips that were read of each member, stripe after stripe.
    members: Vec<Vec<u8>>,
    /// Blocks of each member that could not be read.
    unread: Vec<BTreeSet<usize>>,
}

impl GrowSource {
    pub fn new(layout: Layout, band: Band) -> GrowSource {
        let (members, bytes) = (layout.shape.columns(), (band.member_sectors() * SECTOR_BYTES) as usize);
        GrowSource {
            layout,
            band,
            members: vec![vec![0; bytes]; members],
            unread: vec![BTreeSet::new(); members],
        }
    }

    const fn strip_bytes(&self) -> usize {
        (self.band.sectors * SECTOR_BYTES) as usize
    }

    /// Marks a member as unreadable in the whole band.
    pub fn lacks(&mut self, role: usize) {
        self.unread[role] = (0..self.members[role].len() / BLOCK).collect();
    }

    /// Reads what a member has of the band; fails where that is nothing.
    pub fn read(&mut self, role: usize, member: &mut dyn BlockDevice) -> Result<(), IoError> {
        let (stripes, step) = if self.band.sectors == self.layout.strip_sectors {
            (1, self.members[role].len())
        } else {
            (self.band.stripes, self.strip_bytes())
        };
        for stripe in 0..stripes {
            let part = Band { stripe: self.band.stripe + stripe, ..self.band };
            let error = self.read_part(role, member, part.lba(&self.layout), stripe as usize * step, step);
            if let Some(error) = error.filter(|_| self.unread[role].len() * BLOCK == self.members[role].len())
            {
                return Err(error);
            }
        }
        Ok(())
    }

    fn read_part(
        &mut self,
        role: usize,
        member: &mut dyn BlockDevice,
        at: Lba,
        place: usize,
        bytes: usize,
    ) -> Option<IoError> {
        if let Ok(buf) = member.read(at, bytes) {
            self.members[role][place..place + bytes].copy_from_slice(buf.bytes());
            return None;
        }
        let mut failed = None;
        for block in 0..bytes / BLOCK {
            let here = place + block * BLOCK;
            match member.read(at + block as u64 * LINE_SECTORS, BLOCK) {
                Ok(buf) => self.members[role][here..here + BLOCK].copy_from_slice(buf.bytes()),
                Err(error) => {
                    self.unread[role].insert(here / BLOCK);
                    failed = Some(error);
                }
            }
        }
        failed
    }

    /// The strip of a member in the first stripe.
    pub fn first(&self, role: usize) -> &[u8] {
        &self.members[role][..self.strip_bytes()]
    }

    /// True when all of the strip of a member in the first stripe was read or computed.
    pub fn has_first(&self, role: usize) -> bool {
        self.unread[role].range(..self.strip_bytes() / BLOCK).next().is_none()
    }

    /// Puts what was kept of the first stripe in the place of what may have been overwritten.
    pub fn put_first(&mut self, role: usize, kept: Option<&[u8]>) {
        let bytes = self.strip_bytes();
        match kept {
            Some(kept) => {
                self.members[role][..bytes].copy_from_slice(kept);
                self.unread[role] = self.unread[role].split_off(&(bytes / BLOCK));
            }
            None => self.unread[role].extend(0..bytes / BLOCK),
        }
    }

    /// Computes the data that could not be read.
    pub fn recover(&mut self) -> Result<(), LostStripe> {
        let rows = self.strip_bytes() / BLOCK;
        let blocks: BTreeSet<usize> = self.unread.iter().flatten().copied().collect();
        for block in blocks {
            let stripe = self.band.stripe + (block / rows) as u64;
            self.recover_row(stripe, block).ok_or(LostStripe { stripe })?;
        }
        Ok(())
    }

    fn recover_row(&mut self, stripe: u64, block: usize) -> Option<()> {
        let shape = self.layout.shape;
        let role = |column: usize| self.layout.member(stripe, column);
        let known = |column: &usize| !self.unread[role(*column)].contains(&block);
        let unknown: Vec<usize> = (0..shape.data).filter(|column| !known(column)).collect();
        let columns: Vec<usize> = shape.parity_columns().filter(known).take(unknown.len()).collect();
        if columns.len() < unknown.len() {
            return None;
        }
        let range = block * BLOCK..(block + 1) * BLOCK;
        let bytes = |column: usize| &self.members[role(column)][range.clone()];
        let parities: Vec<usize> = columns.iter().map(|column| column - shape.data).collect();
        let mut out: Vec<Vec<u8>> = columns.iter().map(|&column| bytes(column).to_vec()).collect();
        for column in (0..shape.data).filter(|column| !unknown.contains(column)) {
            for (sum, &parity) in out.iter_mut().zip(&parities) {
                add_scaled(sum, bytes(column), weight(parity, column));
            }
        }
        solve(&unknown, &parities, &mut out);
        for (column, bytes) in unknown.into_iter().zip(out) {
            let role = self.layout.member(stripe, column);
            self.members[role][range.clone()].copy_from_slice(&bytes);
            self.unread[role].remove(&block);
        }
        Some(())
    }

    /// The rows of a strip of the array, which is one of the band's; after [`GrowSource::recover`].
    pub fn strip(&self, number: u64) -> &[u8] {
        let data = self.layout.shape.data as u64;
        let (stripe, column) = (number / data, (number % data) as usize);
        let at = (stripe - self.band.stripe) as usize * self.strip_bytes();
        &self.members[self.layout.member(stripe, column)][at..at + self.strip_bytes()]
    }
}
