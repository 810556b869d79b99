//! `dcd study`, as far as a browser shows its page.

use std::fs;

use crate::common::{Place, dcd, expect};
use crate::tune::fits;

#[test]
fn the_page_opens_with_the_claims_and_small_plots_and_fits_a_telephone() {
    let place = Place::new();
    let out = place.path("results");
    let set = ["study", "run", "dcd-rawwrite", "--set", "total=1MB", "--out"];
    expect(&dcd().args(set).arg(&out).output().unwrap(), 0, "sentences hold");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what}"));
    assert!(at("class=\"claim ") < at("<svg") && at("<svg") < at("<h2"), "the overview comes first");
    fits(&place, &out.join("report.html"));
}
