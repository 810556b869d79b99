//! The paper's worked example, and random stripes against a model of the members' bytes.

use proptest::prelude::*;

use super::*;
use crate::raid::compute::{self, Blocks, Computed};
use crate::raid::contiguity::Strides;
use crate::raid::parity;

const RAID5: Shape = Shape { data: 4, parity: 1 };

/// A stripe from rows of letters: E, C, D, and P for partial.
fn stripe(shape: Shape, rows: &[&str]) -> StripeView {
    let mut view = StripeView::new(shape, rows.len());
    for (row, letters) in rows.iter().enumerate() {
        for (column, letter) in letters.split_whitespace().enumerate() {
            view.z[(row, column)] = match letter {
                "E" => BlockStatus::Empty,
                "C" => BlockStatus::Clean,
                "D" => BlockStatus::Dirty,
                "P" => BlockStatus::Partial,
                other => panic!("no status {other}"),
            };
        }
    }
    view
}

/// A matrix in words, row by row.
fn words(plan: &Plan) -> Vec<String> {
    let row = |row| plan.matrix.row(row).iter().map(|ops| format!("{ops:?}")).collect::<Vec<_>>().join(" ");
    (0..plan.matrix.rows()).map(row).collect()
}

/// The stripe of the paper's Fig. 7(a), equation (2).
fn figure_7() -> StripeView {
    stripe(RAID5, &["D E E E", "E C E D", "E E E E", "D D D D", "D C D D", "E D E E", "D E E E", "E E D E"])
}

#[test]
fn figure_7_the_basic_matrix_is_equation_3() {
    let plan = plan(&figure_7(), &PlanPurpose::Destage, None).expect("nothing is missing");
    assert_eq!(
        words(&plan),
        [
            "{t,xx,w} {} {} {} {r,x,out,w}",
            "{r,x} {x} {r,x} {x,w} {out,w}",
            "{} {} {} {} {}",
            "{x,w} {x,w} {x,w} {x,w} {out,w}",
            "{x,w} {x} {x,w} {x,w} {out,w}",
            "{} {t,xx,w} {} {} {r,x,out,w}",
            "{t,xx,w} {} {} {} {r,x,out,w}",
            "{} {} {t,xx,w} {} {r,x,out,w}",
        ]
    );
}

#[test]
fn figure_7_after_the_contiguity_transform() {
    let rule = Contiguity { read: Strides::up_to(9), write: Strides::up_to(9) };
    let plan = plan(&figure_7(), &PlanPurpose::Destage, Some(&rule)).expect("nothing is missing");
    // Strip 0: reads from row 2 to row 7 (of 1 to 8) become one, with t where the cache is newer, and so do all writes.
    // Strip 3: row 3 has no content, so its two writes stay two.
    assert_eq!(
        words(&plan),
        [
            "{t,xx,w} {} {} {} {r,x,out,w}",
            "{r,x,w} {x} {r,x} {x,w} {r,out,w}",
            "{r,w} {} {r} {} {r,w}",
            "{t,x,w} {x,w} {t,x,w} {x,w} {r,out,w}",
            "{t,x,w} {x,w} {t,x,w} {x,w} {r,out,w}",
            "{r,w} {t,xx,w} {r,w} {} {r,x,out,w}",
            "{t,xx,w} {} {r,w} {} {r,x,out,w}",
            "{} {} {t,xx,w} {} {r,x,out,w}",
        ]
    );
    let run = |column, rows| BlockRun { column, rows };
    assert_eq!(plan.reads, [run(0, 0..7), run(1, 5..6), run(2, 1..8), run(4, 0..8)]);
    assert_eq!(
        plan.writes,
        [run(0, 0..7), run(1, 3..6), run(2, 3..8), run(3, 1..2), run(3, 3..5), run(4, 0..8)]
    );
}

#[test]
fn figure_7_longer_strides_than_smax_stay() {
    let rule = Contiguity { read: Strides::up_to(5), write: Strides { max: 9, except: vec![(2, 2)] } };
    let view = figure_7();
    let basic = plan(&view, &PlanPurpose::Destage, None).expect("nothing is missing");
    let plan = plan(&view, &PlanPurpose::Destage, Some(&rule)).expect("nothing is missing");
    assert_eq!(plan.reads, basic.reads, "all gaps have a stride of 5 or 6");
    // Strip 1 had writes in rows 4 and 6 over a clean block: a stride of 2 is an exception here.
    assert_eq!(plan.writes, basic.writes);
}

/// Fig. 5: the cycle for what the cache has, on five disks.
#[test]
fn the_cheaper_cycle_is_taken() {
    let cycle = |row| plan(&stripe(RAID5, &[row]), &PlanPurpose::Destage, None).expect("whole").cycles[0];
    assert_eq!(cycle("D E E E"), Cycle::ReadModifyWrite, "N - c = 5 > 2(1 + d) = 4");
    assert_eq!(cycle("D C C E"), Cycle::ReconstructWrite, "3 < 4");
    assert_eq!(cycle("D C E E"), Cycle::ReconstructWrite, "4 = 4");
    assert_eq!(cycle("D D D D"), Cycle::ReconstructWrite);
    assert_eq!(cycle("D D E E"), Cycle::ReconstructWrite, "5 < 6");
    assert_eq!(cycle("C E C E"), Cycle::Nothing);
    assert_eq!(cycle("P C C C"), Cycle::ReconstructWrite, "one read and two writes");
}

const BLOCK: usize = 16;

/// The members' bytes, and the cache's.
struct Model {
    view: StripeView,
    disk: Vec<Vec<Vec<u8>>>,
    cache: Vec<Vec<Vec<u8>>>,
    /// Content that a host has to read afterwards.
    wanted: Vec<Vec<Vec<u8>>>,
}

fn parity_of(shape: Shape, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    (0..shape.parity)
        .map(|parity| {
            let mut sum = vec![0; BLOCK];
            for (column, block) in data.iter().enumerate() {
                parity::add_scaled(&mut sum, block, parity::weight(parity, column));
            }
            sum
        })
        .collect()
}

impl Model {
    fn new(view: StripeView) -> Model {
        let block = |version: usize, row: usize, column: usize| -> Vec<u8> {
            let mix = |i| (version * 131 + row * 37 + column * 101 + i * 29 + (row * column) % 7) % 251;
            (0..BLOCK).map(|i| mix(i) as u8).collect()
        };
        let (mut disk, mut cache, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..view.rows() {
            let data: Vec<_> = (0..view.shape.data).map(|column| block(1, row, column)).collect();
            let mut cached = Vec::new();
            let mut new = Vec::new();
            for (column, old) in data.iter().enumerate() {
                let mut fresh = block(2, row, column);
                match view.z[(row, column)] {
                    BlockStatus::Dirty => {}
                    BlockStatus::Clean => fresh.clone_from(old),
                    BlockStatus::Empty => fresh = vec![0xee; BLOCK],
                    BlockStatus::Partial => fresh[BLOCK / 2..].fill(0xee),
                }
                let expected = match view.z[(row, column)] {
                    BlockStatus::Dirty => fresh.clone(),
                    BlockStatus::Partial => [&fresh[..BLOCK / 2], &old[BLOCK / 2..]].concat(),
                    BlockStatus::Clean | BlockStatus::Empty => old.clone(),
                };
                cached.push(fresh);
                new.push(expected);
            }
            let parity = parity_of(view.shape, &data);
            let mut all: Vec<Vec<u8>> = data.into_iter().chain(parity).collect();
            for (column, bytes) in all.iter_mut().enumerate() {
                if view.access[(row, column)] != Access::Whole {
                    bytes.fill(0xbb);
                }
            }
            disk.push(all);
            cache.push(cached);
            wanted.push(new);
        }
        Model { view, disk, cache, wanted }
    }

    /// Carries a plan out; only what it reads is looked at.
    fn execute(&mut self, plan: &Plan) -> Computed {
        for run in plan.reads.iter() {
            for row in run.rows.clone() {
                assert_eq!(
                    self.view.access[(row, run.column)],
                    Access::Whole,
                    "only readable blocks are read"
                );
            }
        }
        let recovered = compute::recovered(plan, &self.view, &*self);
        for row in 0..self.view.rows() {
            for column in 0..self.view.shape.data {
                let ops = plan.matrix[(row, column)];
                let found_out = ops.reads() || ops.has(Ops::RECOVER);
                if self.view.z[(row, column)] == BlockStatus::Partial && found_out {
                    let old = compute::old(plan, &*self, &recovered, row, column)[BLOCK / 2..].to_vec();
                    self.cache[row][column][BLOCK / 2..].copy_from_slice(&old);
                }
            }
        }
        let parity = compute::parity_out(plan, &self.view, &*self, &recovered);
        let mut after = self.disk.clone();
        for run in &plan.writes {
            for row in run.rows.clone() {
                assert_ne!(
                    self.view.access[(row, run.column)],
                    Access::Failed,
                    "a failed member gets no writes"
                );
                after[row][run.column] = self.content(plan, &recovered, &parity, row, run.column);
            }
        }
        self.disk = after;
        recovered
    }

    /// Returns the content of a write: computed parity, a block of the cache, or a recovered block.
    fn content(
        &self,
        plan: &Plan,
        recovered: &Computed,
        parity: &Computed,
        row: usize,
        column: usize,
    ) -> Vec<u8> {
        if let Some(block) = parity.get(row, column) {
            return block.to_vec();
        }
        if column < self.view.shape.data && self.view.z[(row, column)] != BlockStatus::Empty {
            return self.cache[row][column].clone();
        }
        assert!(plan.matrix[(row, column)].has(Ops::R.with(Ops::RECOVER)), "its content is known");
        compute::old(plan, self, recovered, row, column).to_vec()
    }

    /// After a destage every block that can be read is right, data and parity.
    fn check_destaged(&self, plan: &Plan) {
        for row in 0..self.view.rows() {
            let parity = parity_of(self.view.shape, &self.wanted[row]);
            for (column, wanted) in self.wanted[row].iter().chain(&parity).enumerate() {
                let written = plan.matrix[(row, column)].writes();
                match self.view.access[(row, column)] {
                    Access::Failed => {}
                    Access::Unreadable if !written => {}
                    _ => assert_eq!(&self.disk[row][column], wanted, "row {row}, column {column}"),
                }
            }
        }
    }
}

impl Blocks for Model {
    fn cached(&self, row: usize, column: usize) -> &[u8] {
        &self.cache[row][column]
    }

    fn read(&self, row: usize, column: usize) -> &[u8] {
        &self.disk[row][column]
    }
}

fn shapes() -> impl Strategy<Value = Shape> {
    (2..7usize, 1..3usize).prop_map(|(data, parity)| Shape { data, parity })
}

/// Random statuses; dirty enough to make gaps.
fn views(shapes: impl Strategy<Value = Shape>) -> impl Strategy<Value = StripeView> {
    (shapes, 1..33usize).prop_flat_map(|(shape, rows)| {
        let status = prop_oneof![
            5 => Just(BlockStatus::Empty),
            2 => Just(BlockStatus::Clean),
            2 => Just(BlockStatus::Dirty),
            1 => Just(BlockStatus::Partial),
        ];
        prop::collection::vec(status, rows * shape.data).prop_map(move |cells| {
            let mut view = StripeView::new(shape, rows);
            for (index, status) in cells.into_iter().enumerate() {
                view.z[(index / shape.data, index % shape.data)] = status;
            }
            view
        })
    })
}

/// As many failed members and bad sectors as the parity makes up for.
fn damaged() -> impl Strategy<Value = StripeView> {
    (views(shapes()), any::<u64>()).prop_map(|(mut view, seed)| {
        let columns = view.shape.columns();
        let mut state = seed;
        let mut draw = |end: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % end
        };
        let gone = draw(view.shape.parity + 1);
        let failed: Vec<usize> = (0..gone).map(|_| draw(columns)).collect();
        for row in 0..view.rows() {
            let mut missing: Vec<usize> = failed.clone();
            failed.iter().for_each(|&column| view.access[(row, column)] = Access::Failed);
            while missing.len() < view.shape.parity && draw(3) == 0 {
                let column = draw(columns);
                if !missing.contains(&column) {
                    view.access[(row, column)] = Access::Unreadable;
                }
                missing.push(column);
            }
        }
        view
    })
}

fn strides() -> impl Strategy<Value = Strides> {
    (0..20u64, prop::collection::vec((2..12u64, 0..3u64), 0..2)).prop_map(|(max, except)| Strides {
        max,
        except: except.into_iter().map(|(first, more)| (first, first + more)).collect(),
    })
}

fn rules() -> impl Strategy<Value = Contiguity> {
    (strides(), strides()).prop_map(|(read, write)| Contiguity { read, write })
}

/// Checks that what a transform added is allowed, and that what it could add it did.
fn check_added(
    before: &[bool],
    after: &[bool],
    rule: &Strides,
    allowed: impl Fn(usize) -> bool,
) -> Result<(), TestCaseError> {
    let first = before.iter().position(|&marked| marked).unwrap_or(before.len());
    let last = before.iter().rposition(|&marked| marked).unwrap_or(0);
    for row in 0..before.len() {
        prop_assert!(after[row] || !before[row], "a transform takes nothing away");
        if after[row] && !before[row] {
            prop_assert!(first < row && row < last, "only between two others, (4) and (5)");
        }
    }
    let mut from = first;
    while let Some(to) = (from + 1..before.len()).find(|&row| before[row]) {
        let stride = (to - from) as u64;
        let good = rule.max > stride && rule.except.iter().all(|&(s, e)| stride < s || stride > e);
        let good = good && (from + 1..to).all(&allowed);
        for (row, &filled) in after.iter().enumerate().take(to).skip(from + 1) {
            prop_assert_eq!(filled, good, "row {} in a gap of stride {}", row, stride);
        }
        from = to;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn data_and_parity_come_out_right(view in damaged(), rule in prop::option::of(rules())) {
        let plan = plan(&view, &PlanPurpose::Destage, rule.as_ref()).expect("parity makes up for what is missing");
        let mut model = Model::new(view);
        model.execute(&plan);
        model.check_destaged(&plan);
    }

    #[test]
    fn what_cannot_be_read_is_computed_and_nothing_changes(view in damaged(), rule in rules()) {
        let rows = view.rows() / 3..view.rows();
        let plan = plan(&view, &PlanPurpose::Fetch(rows.clone().collect()), Some(&rule)).expect("parity makes up for it");
        let mut model = Model::new(view.clone());
        let before = model.disk.clone();
        let recovered = model.execute(&plan);
        for row in rows {
            for column in (0..view.shape.data).filter(|&column| view.access[(row, column)] != Access::Whole) {
                let old = Model::new(StripeView::new(view.shape, view.rows())).disk[row][column].clone();
                if view.z[(row, column)] != BlockStatus::Clean {
                    prop_assert_eq!(recovered.get(row, column), Some(old.as_slice()));
                }
                let repaired = plan.matrix[(row, column)].writes();
                prop_assert_eq!(&model.disk[row][column], if repaired { &old } else { &before[row][column] });
            }
        }
    }

    #[test]
    fn the_predicates_hold(view in views(shapes()), rule in rules()) {
        let basic = plan(&view, &PlanPurpose::Destage, None).expect("whole");
        let full = plan(&view, &PlanPurpose::Destage, Some(&rule)).expect("whole");
        for column in 0..view.shape.columns() {
            let is_parity = column >= view.shape.data;
            let of = |plan: &Plan, is: fn(Ops) -> bool| -> Vec<bool> {
                (0..view.rows()).map(|row| is(plan.matrix[(row, column)])).collect()
            };
            check_added(&of(&basic, Ops::reads), &of(&full, Ops::reads), &rule.read, |_| true)?;
            let known = |row| {
                let in_cache = !is_parity && view.z[(row, column)] != BlockStatus::Empty;
                in_cache || full.matrix[(row, column)].has(Ops::R)
            };
            check_added(&of(&basic, Ops::writes), &of(&full, Ops::writes), &rule.write, known)?;
            for row in 0..view.rows() {
                let ops = full.matrix[(row, column)];
                if !is_parity && view.z[(row, column)].is_dirty() {
                    prop_assert!(!ops.has(Ops::R), "r would spoil newer data, (6)");
                    prop_assert!(ops.writes(), "dirty blocks are destaged");
                }
                let kept = ops.has(Ops::X) || ops.has(Ops::XX);
                prop_assert_eq!(kept, basic.matrix[(row, column)].has(Ops::X.with(Ops::XX)), "no XOR is added");
            }
        }
    }

    #[test]
    fn a_plan_moves_no_more_than_it_may(view in views(shapes()), rule in rules()) {
        let basic = plan(&view, &PlanPurpose::Destage, None).expect("whole");
        let full = plan(&view, &PlanPurpose::Destage, Some(&rule)).expect("whole");
        let moved = |plan: &Plan, row: usize| {
            plan.matrix.row(row).iter().map(|ops| usize::from(ops.reads()) + usize::from(ops.writes())).sum::<usize>()
        };
        for row in 0..view.rows() {
            let z = view.z.row(row);
            let count = |is: fn(BlockStatus) -> bool| z.iter().filter(|status| is(**status)).count();
            let (dirty, parity) = (count(BlockStatus::is_dirty), view.shape.parity);
            let fills = count(|status| matches!(status, BlockStatus::Empty | BlockStatus::Partial));
            let cheapest = (fills + dirty + parity).min(2 * (dirty + parity));
            prop_assert_eq!(moved(&basic, row), if dirty == 0 { 0 } else { cheapest });
        }
        // Each gap that is filled saves a command, and costs less than Smax blocks.
        let blocks = |runs: &[BlockRun]| runs.iter().map(|run| run.rows.len()).sum::<usize>();
        for (basic, full, max) in
            [(&basic.reads, &full.reads, rule.read.max), (&basic.writes, &full.writes, rule.write.max)]
        {
            let (saved, added) = (basic.len() - full.len(), blocks(full) - blocks(basic));
            prop_assert!(added as u64 <= saved as u64 * max.saturating_sub(2));
        }
    }
}
