//! Decides by the labels alone which legs can be believed.

use super::LegCanary;
use super::label::{Label, LabelError, LegState};
use crate::Planted;

/// Reason for refusing to start a mirror. Nothing was written. The numbers are ports; their names are filled in by [`super::Mirror`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorRefused {
    /// No device has a label.
    NoLegs,
    TwoMirrors(usize, usize),
    /// Two devices are the same leg.
    Twice(usize, usize),
    /// Two legs have diverged: each was used without the other, and has writes that the other lacks.
    Apart(usize, usize),
    /// This number of legs is missing, and no label says that they failed.
    Missing(usize),
    /// No leg that was found has all acknowledged data.
    NoneWhole,
}

/// A mirror before its first write, as its labels describe it.
#[derive(Debug, PartialEq, Eq)]
pub struct Assembled {
    /// New label, to be written to the whole legs before anything else.
    pub label: Label,
    /// The legs on the ports; none for a device that is no leg.
    pub on_port: Vec<Option<u64>>,
    /// Legs that are missing although no label says that they failed.
    pub missing: Vec<u64>,
    /// The newest label that was found.
    pub found_generation: u64,
}

pub type FoundLabel = Result<(Label, u64), LabelError>;

/// Decides. `degraded`: legs may be missing that are not known to have failed.
pub fn assemble(
    found: &[FoundLabel],
    degraded: bool,
    canary: Planted<LegCanary>,
) -> Result<Assembled, MirrorRefused> {
    let labels: Vec<(usize, &Label, u64)> = found
        .iter()
        .enumerate()
        .filter_map(|(port, found)| found.as_ref().ok().map(|(label, own)| (port, label, *own)))
        .collect();
    let Some(&(first, newest, _)) = labels.iter().max_by_key(|(_, label, _)| label.generation) else {
        return Err(MirrorRefused::NoLegs);
    };
    if let Some((port, ..)) = labels.iter().find(|(_, label, _)| label.uuid != newest.uuid) {
        return Err(MirrorRefused::TwoMirrors(first, *port));
    }
    for (index, (port, _, own)) in labels.iter().enumerate() {
        if let Some((other, ..)) = labels[..index].iter().find(|(.., other)| other == own) {
            return Err(MirrorRefused::Twice(*other, *port));
        }
    }
    // A leg with a generation before `complete` has older data: all whole legs had that generation.
    let is_in_use = |label: &Label, own: u64| {
        let is_whole = newest.standing(own) == Some(LegState::Whole) && label.generation >= newest.complete;
        is_whole || canary.is(LegCanary::StaleLeg)
    };
    for &(port, label, _) in labels.iter().filter(|(_, label, own)| !is_in_use(label, *own)) {
        let went_on_without = |id: u64| label.standing(id) == Some(LegState::Failed);
        if let Some(&(other, ..)) = labels
            .iter()
            .find(|(_, _, id)| newest.standing(*id) == Some(LegState::Whole) && went_on_without(*id))
        {
            return Err(MirrorRefused::Apart(other, port));
        }
        if newest.whole().any(went_on_without) {
            return Err(MirrorRefused::Apart(first, port));
        }
    }
    let in_use: Vec<u64> =
        labels.iter().filter(|(_, label, own)| is_in_use(label, *own)).map(|(.., own)| *own).collect();
    if in_use.is_empty() {
        return Err(MirrorRefused::NoneWhole);
    }
    let is_there = |id: u64| labels.iter().any(|(.., own)| *own == id);
    let missing: Vec<u64> = newest.whole().filter(|id| !is_there(*id)).collect();
    if !missing.is_empty() && !degraded {
        return Err(MirrorRefused::Missing(missing.len()));
    }
    let mut label = newest.clone();
    label.legs.retain(|leg| leg.standing != LegState::Filling || is_there(leg.id));
    for leg in &mut label.legs {
        leg.standing = match is_there(leg.id) {
            _ if in_use.contains(&leg.id) => LegState::Whole,
            true => LegState::Filling,
            false => LegState::Failed,
        };
    }
    // The missing leg may be one generation ahead: that number must stay unused.
    label.generation += if missing.is_empty() { 1 } else { 2 };
    let in_use_generations = labels.iter().filter(|(_, label, own)| is_in_use(label, *own));
    label.complete = in_use_generations.map(|(_, label, _)| label.generation).min().unwrap_or(0);
    let is_listed = |id: &u64| label.standing(*id).is_some();
    let on_port =
        found.iter().map(|found| found.as_ref().ok().map(|(_, own)| *own).filter(is_listed)).collect();
    Ok(Assembled { label, on_port, missing, found_generation: newest.generation })
}

#[cfg(test)]
mod tests {
    use super::super::label::Leg;
    use super::*;

    const WHOLE: LegState = LegState::Whole;
    const FILLING: LegState = LegState::Filling;
    const FAILED: LegState = LegState::Failed;

    /// The label of leg `own`; the legs are numbered from 1 on.
    fn leg(own: u64, generation: u64, complete: u64, standings: &[LegState]) -> FoundLabel {
        let legs = standings.iter().zip(1..).map(|(&standing, id)| Leg { id, standing }).collect();
        Ok((Label { uuid: [7; 16], generation, complete, sectors: 100, legs }, own))
    }

    fn standings(found: &[FoundLabel], degraded: bool) -> Result<Vec<LegState>, MirrorRefused> {
        assemble(found, degraded, Planted::default())
            .map(|assembled| assembled.label.legs.iter().map(|leg| leg.standing).collect())
    }

    #[test]
    fn legs_that_are_alike_are_whole() {
        let found = [leg(1, 5, 4, &[WHOLE, WHOLE]), leg(2, 5, 4, &[WHOLE, WHOLE])];
        let assembled = assemble(&found, false, Planted::default()).expect("both are there");
        assert_eq!(assembled.on_port, [Some(1), Some(2)]);
        assert_eq!((assembled.label.generation, assembled.label.complete), (6, 5));
    }

    #[test]
    fn a_leg_that_a_crash_left_an_update_behind_is_whole() {
        let found = [leg(1, 6, 5, &[WHOLE, WHOLE]), leg(2, 5, 4, &[WHOLE, WHOLE])];
        assert_eq!(standings(&found, false), Ok(vec![WHOLE, WHOLE]));
        assert_eq!(assemble(&found, false, Planted::default()).expect("both are there").label.complete, 5);
    }

    #[test]
    fn a_leg_that_has_failed_is_filled() {
        let found = [leg(1, 6, 5, &[WHOLE, FAILED]), leg(2, 5, 4, &[WHOLE, WHOLE])];
        assert_eq!(standings(&found, false), Ok(vec![WHOLE, FILLING]));
    }

    #[test]
    fn an_older_content_is_not_believed() {
        let found = [leg(1, 9, 8, &[WHOLE, WHOLE]), leg(2, 5, 4, &[WHOLE, WHOLE])];
        assert_eq!(standings(&found, false), Ok(vec![WHOLE, FILLING]));
    }

    #[test]
    fn a_leg_that_is_not_there_must_be_known_to_have_failed() {
        let none = || Err(LabelError::None);
        assert_eq!(standings(&[leg(1, 5, 4, &[WHOLE, WHOLE])], false), Err(MirrorRefused::Missing(1)));
        assert_eq!(
            standings(&[leg(1, 5, 4, &[WHOLE, WHOLE]), none()], false),
            Err(MirrorRefused::Missing(1))
        );
        assert_eq!(standings(&[leg(1, 5, 4, &[WHOLE, FAILED]), none()], false), Ok(vec![WHOLE, FAILED]));
        let alone = assemble(&[leg(1, 5, 4, &[WHOLE, WHOLE])], true, Planted::default()).expect("it may");
        assert_eq!((alone.label.generation, alone.label.standing(2)), (7, Some(FAILED)));
        assert_eq!((alone.missing, alone.found_generation), (vec![2], 5));
    }

    #[test]
    fn a_leg_that_was_never_filled_is_no_start() {
        assert_eq!(standings(&[leg(2, 6, 5, &[WHOLE, FILLING])], true), Err(MirrorRefused::NoneWhole));
        assert_eq!(standings(&[leg(2, 6, 5, &[WHOLE, FAILED])], true), Err(MirrorRefused::NoneWhole));
    }

    #[test]
    fn one_that_was_to_be_filled_and_is_gone_is_forgotten() {
        assert_eq!(standings(&[leg(1, 6, 5, &[WHOLE, FILLING])], false), Ok(vec![WHOLE]));
    }

    #[test]
    fn legs_that_were_used_apart_are_refused() {
        let found = [leg(1, 7, 5, &[WHOLE, FAILED]), leg(2, 7, 5, &[FAILED, WHOLE])];
        assert!(matches!(standings(&found, true), Err(MirrorRefused::Apart(..))));
        let found = [leg(1, 9, 7, &[WHOLE, FAILED]), leg(2, 7, 5, &[FAILED, WHOLE])];
        assert!(matches!(standings(&found, true), Err(MirrorRefused::Apart(..))));
        // One update of both was cut short, and then the second went on alone.
        let found = [leg(1, 6, 5, &[WHOLE, WHOLE]), leg(2, 7, 5, &[FAILED, WHOLE])];
        assert_eq!(standings(&found, false), Ok(vec![FILLING, WHOLE]));
    }

    #[test]
    fn copies_and_strangers_are_refused() {
        let found = [leg(1, 5, 4, &[WHOLE, WHOLE]), leg(1, 5, 4, &[WHOLE, WHOLE])];
        assert_eq!(standings(&found, false), Err(MirrorRefused::Twice(0, 1)));
        let mut other = leg(2, 5, 4, &[WHOLE, WHOLE]);
        other.as_mut().expect("it is one").0.uuid = [8; 16];
        assert!(matches!(
            standings(&[leg(1, 5, 4, &[WHOLE, WHOLE]), other], false),
            Err(MirrorRefused::TwoMirrors(..))
        ));
        assert_eq!(standings(&[Err(LabelError::None)], true), Err(MirrorRefused::NoLegs));
    }
}
