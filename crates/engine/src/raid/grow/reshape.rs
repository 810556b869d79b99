//! Moving the data of an array from the stripes of fewer members to those of more, band after band.

use std::ops::ControlFlow;

use crate::raid::grow::backup::{self, KeptBand};
use crate::raid::grow::band::{Band, Bands};
use crate::raid::grow::source::{GrowSource, LostStripe};
use crate::raid::grow::{GrowError, GrowProgress, GrowWork};
use crate::raid::layout::Layout;
use crate::raid::parity;
use crate::raid::superblock::Reshape;
use crate::{Buf, Durability, Io, SECTOR_BYTES};

/// See the module's documentation.
pub struct Mover<'w, 'a, 'b> {
    pub work: &'w mut GrowWork<'a, 'b>,
    pub bands: Bands,
}

impl Mover<'_, '_, '_> {
    /// Moves everything from where `reshape` is; behind the data, the new stripes are zeroes.
    pub fn run(&mut self, mut reshape: Reshape, progress: GrowProgress<'_>) -> Result<(), GrowError> {
        let total = self.bands.new.stripes * self.bands.new.strip_sectors;
        while reshape.sectors < self.bands.end() {
            let mut band = self.bands.at(reshape.sectors);
            if reshape.kept {
                band.sectors = self.kept_sectors(&band)?;
            }
            let source = self.source(&band, reshape.kept)?;
            if self.bands.is_critical(&band) && !reshape.kept {
                self.keep(&band, &source)?;
                self.reached(Reshape { kept: true, ..reshape })?;
            }
            self.write(&band, &source)?;
            reshape = Reshape { sectors: band.end(&self.bands.new), kept: false, ..reshape };
            self.reached(reshape)?;
            if progress(reshape.sectors, total).is_break() {
                return Err(GrowError::Stopped);
            }
        }
        let (mut recorded, first) = (Ok(()), reshape.sectors);
        let zeroed = self.work.zero(first, total, &mut |work, sectors| {
            work.superblock.reshape = Some(Reshape { sectors, ..reshape });
            recorded = work.record();
            if recorded.is_err() { ControlFlow::Break(()) } else { progress(sectors, total) }
        });
        recorded.and(zeroed)
    }

    /// Records how far the reshape is. The record is durable on return, so the data that it is about must be durable before.
    fn reached(&mut self, reshape: Reshape) -> Result<(), GrowError> {
        self.work.superblock.reshape = Some(reshape);
        self.work.record()
    }

    fn place(&self, band: &Band, role: usize) -> KeptBand {
        KeptBand { uuid: self.work.superblock.uuid, position: band.position(&self.bands.new), role }
    }

    /// The old members that can be used.
    fn old_members(&self) -> Vec<usize> {
        let old = self.bands.old.shape.columns();
        self.work.live().into_iter().filter(|&role| role < old).collect()
    }

    fn kept(&mut self, band: &Band, role: usize) -> Option<Vec<u8>> {
        let place = self.place(band, role);
        backup::kept(self.work.member(role), &place).ok().flatten()
    }

    /// The sectors that were kept of a band that had been begun.
    fn kept_sectors(&mut self, band: &Band) -> Result<u64, GrowError> {
        let kept = self.old_members().into_iter().find_map(|role| self.kept(band, role));
        kept.map(|kept| kept.len() as u64 / SECTOR_BYTES).ok_or(GrowError::Lost { stripe: band.stripe })
    }

    /// Reads what a band is made of. `kept`: some of it may have been overwritten where it was.
    fn source(&mut self, band: &Band, kept: bool) -> Result<GrowSource, GrowError> {
        let mut source = GrowSource::new(self.bands.old, self.bands.source(band));
        for role in 0..self.bands.old.shape.columns() {
            if self.work.superblock.has_failed(role) {
                source.lacks(role);
                continue;
            }
            if let Err(error) = source.read(role, self.work.member(role)) {
                self.work.fail(role, error)?;
                source.lacks(role);
                continue;
            }
            if kept {
                source.put_first(role, self.kept(band, role).as_deref());
            }
        }
        source.recover().map_err(|LostStripe { stripe }| GrowError::Lost { stripe })?;
        Ok(source)
    }

    /// Keeps what is about to be overwritten, on each member its own: data that could not be read is there as it was computed,
    /// but not parity.
    fn keep(&mut self, band: &Band, source: &GrowSource) -> Result<(), GrowError> {
        for role in self.old_members().into_iter().filter(|&role| source.has_first(role)) {
            let place = self.place(band, role);
            if let Err(error) = backup::keep(self.work.member(role), &place, source.first(role)) {
                self.work.fail(role, error)?;
            }
        }
        Ok(())
    }

    /// Writes a band, and makes it durable.
    fn write(&mut self, band: &Band, source: &GrowSource) -> Result<(), GrowError> {
        let at = band.lba(&self.bands.new);
        for (role, bytes) in self.compose(band, source).into_iter().enumerate() {
            if self.work.superblock.has_failed(role) {
                continue;
            }
            let write = Io::Write { at, buf: Buf::copy_of(&bytes), durability: Durability::Volatile };
            if let Err(error) = self.work.member(role).run(write).status {
                self.work.fail(role, error)?;
            }
        }
        self.work.flush()
    }

    /// The part of a band that each member gets.
    fn compose(&self, band: &Band, source: &GrowSource) -> Vec<Vec<u8>> {
        let (old, new) = (&self.bands.old, &self.bands.new);
        let data = new.shape.data as u64;
        let strips = old.stripes * old.shape.data as u64;
        let (strip, stripes) = ((band.sectors * SECTOR_BYTES) as usize, band.stripes as usize);
        let mut members = vec![vec![0; strip * stripes]; new.shape.columns()];
        for index in 0..band.stripes {
            let stripe = band.stripe + index;
            let zeroes = vec![0; strip];
            let data: Vec<&[u8]> = (stripe * data..(stripe + 1) * data)
                .map(|number| if number < strips { source.strip(number) } else { &zeroes })
                .collect();
            let at = index as usize * strip..(index as usize + 1) * strip;
            for (column, bytes) in data.iter().enumerate() {
                members[new.member(stripe, column)][at.clone()].copy_from_slice(bytes);
            }
            for (column, bytes) in parities(new, &data) {
                members[new.member(stripe, column)][at.clone()].copy_from_slice(&bytes);
            }
        }
        members
    }
}

/// The parity strips of a stripe, by column.
fn parities(layout: &Layout, data: &[&[u8]]) -> Vec<(usize, Vec<u8>)> {
    let mut p = vec![0; data[0].len()];
    if layout.shape.parity == 1 {
        parity::p_only(data, &mut p);
        return vec![(layout.shape.data, p)];
    }
    let mut q = vec![0; p.len()];
    parity::p_and_q(data, &mut p, &mut q);
    vec![(layout.shape.data, p), (layout.shape.data + 1, q)]
}
