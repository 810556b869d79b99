//! Counts the cells of tables that stand beside a figure of the paper, and how many of them are near it.

use std::iter::Sum;

use crate::Table;

/// Distances that are counted, as parts of the paper's figure.
pub const WITHIN: [f64; 3] = [0.10, 0.25, 0.50];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cells {
    pub all: usize,
    /// Number of cells within each distance of [`WITHIN`].
    pub within: [usize; 3],
}

impl Cells {
    pub fn of(tables: &[Table]) -> Cells {
        let pairs = tables.iter().flat_map(|table| {
            let columns = columns(&table.columns);
            let of_row = move |row: &Vec<String>| {
                let pair = |&(paper, ours): &(usize, usize)| number(&row[paper]).zip(number(&row[ours]));
                columns.iter().filter_map(pair).collect::<Vec<_>>()
            };
            table.rows.iter().flat_map(of_row)
        });
        pairs.map(|(paper, ours)| Cells { all: 1, within: WITHIN.map(|part| near(paper, ours, part)) }).sum()
    }

    /// Number of cells, and the shares within each distance.
    pub fn columns(self) -> [String; 4] {
        let share = |count: usize| match self.all {
            0 => "–".to_owned(),
            all => format!("{:.0} %", 100.0 * count as f64 / all as f64),
        };
        let [a, b, c] = self.within.map(share);
        [self.all.to_string(), a, b, c]
    }
}

impl Sum for Cells {
    fn sum<I: Iterator<Item = Cells>>(cells: I) -> Cells {
        cells.fold(Cells::default(), |sum, cells| Cells {
            all: sum.all + cells.all,
            within: std::array::from_fn(|index| sum.within[index] + cells.within[index]),
        })
    }
}

fn near(paper: f64, ours: f64, part: f64) -> usize {
    usize::from((ours - paper).abs() <= part * paper.abs())
}

/// Columns with a figure of the paper, each with the column of ours: the next one, or the one of the same name among as many
/// columns of ours after those of the paper.
fn columns(names: &[String]) -> Vec<(usize, usize)> {
    let is_paper = |name: &String| name == "paper" || name.contains(", paper") || name.starts_with("paper (");
    let mut pairs = Vec::new();
    for (index, name) in names.iter().enumerate().filter(|(_, name)| is_paper(name)) {
        if names.get(index + 1).is_some_and(|next| next.contains("ours")) {
            pairs.push((index, index + 1));
        } else if let Some(ours) = names.iter().position(|other| *other == name.replace("paper", "ours")) {
            pairs.extend((index..ours).map(|paper| (paper, paper + ours - index)));
        }
    }
    pairs
}

fn number(cell: &str) -> Option<f64> {
    cell.trim_end_matches(['x', '%', ' ']).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_beside_a_figure_of_the_paper_are_counted_by_their_distance() {
        let mut table = Table::new("t", "disk | W_wc, paper | ours | stalls, paper | stalls, ours | I/Os");
        table.row(["a", "10", "10.9", "2 %", "3 %", "7"].map(str::to_owned));
        table.row(["b", "–", "4", "2x", "2.4x", "7"].map(str::to_owned));
        let mut blocks = Table::new("t", " | PBGC, paper | SC | PBGC, ours | SC");
        blocks.row(["video", "31.4", "20", "31", "40"].map(str::to_owned));
        let cells = Cells::of(&[table, blocks]);
        assert_eq!(cells, Cells { all: 5, within: [2, 3, 4] });
        assert_eq!(cells.columns(), ["5", "40 %", "60 %", "80 %"].map(str::to_owned));
    }
}
