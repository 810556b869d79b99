//! The oracle on histories made by hand: it must take the good ones and refuse the bad ones.

use super::*;

const ALL: Extent = Extent::new(Lba(0), 4);

fn oracle(promise: Promise) -> Oracle {
    Oracle::new(promise, Nanos(100), 7, vec![Value::Write(0), Value::Zero, Value::Write(0), Value::Zero])
}

fn wrote(oracle: &mut Oracle, start: u64, sectors: u64, at: u64) -> u32 {
    let write = oracle.write_begins(Extent::new(Lba(start), sectors), WriteContent::Stamps, false);
    oracle.write_ends(write, true, Nanos(at));
    write
}

fn flushed(oracle: &mut Oracle) {
    let mark = oracle.flush_begins();
    oracle.flush_ends(mark, true);
}

/// Parses the content that was found, one letter a sector: `z` zeroes, `x` garbage, a digit the write with this number.
fn found(text: &str) -> Vec<SeenContent> {
    let one = |letter: char| match letter {
        'z' => SeenContent::Value(Value::Zero),
        'x' => SeenContent::Garbage,
        'm' => SeenContent::Misplaced { lba: Lba(9), write: 1 },
        digit => SeenContent::Value(Value::Write(digit.to_digit(10).expect("a digit"))),
    };
    text.chars().map(one).collect()
}

#[track_caller]
fn judge(oracle: &Oracle, now: u64, good: &[&str], bad: &[&str]) {
    for text in good {
        assert_eq!(oracle.judge(Nanos(now), &found(text)), Ok(()), "{text}");
    }
    for text in bad {
        assert!(oracle.judge(Nanos(now), &found(text)).is_err(), "{text} is wrong");
    }
}

#[test]
fn flush_keeps_what_it_covers_and_lets_the_rest_go() {
    let mut oracle = oracle(Promise::Flush);
    wrote(&mut oracle, 0, 2, 0);
    judge(&oracle, 0, &["0z0z", "110z", "1z0z", "010z"], &["xz0z", "0z1z", "mz0z", "zz0z"]);
    let mark = oracle.flush_begins();
    wrote(&mut oracle, 1, 2, 0);
    judge(&oracle, 0, &["0z0z", "122z"], &[]);
    oracle.flush_ends(mark, true);
    judge(&oracle, 0, &["110z", "122z", "120z", "112z"], &["0z0z", "1z0z", "010z"]);
    oracle.write_begins(Extent::new(Lba(3), 1), WriteContent::Stamps, false);
    judge(&oracle, 0, &["1103", "110z"], &[]);
}

#[test]
fn a_failed_flush_covers_nothing_and_a_failed_write_may_have_happened() {
    let mut oracle = oracle(Promise::Flush);
    wrote(&mut oracle, 0, 1, 0);
    let mark = oracle.flush_begins();
    oracle.flush_ends(mark, false);
    judge(&oracle, 0, &["0z0z", "1z0z"], &[]);
    flushed(&mut oracle);
    judge(&oracle, 0, &["0z0z", "1z0z"], &[]);
    wrote(&mut oracle, 0, 1, 0);
    flushed(&mut oracle);
    let failed = oracle.write_begins(Extent::new(Lba(0), 2), WriteContent::Stamps, true);
    oracle.write_ends(failed, false, Nanos(0));
    flushed(&mut oracle);
    judge(&oracle, 0, &["2z0z", "330z", "230z"], &["0z0z", "1z0z"]);
    wrote(&mut oracle, 0, 2, 0);
    flushed(&mut oracle);
    judge(&oracle, 0, &["440z"], &["430z", "240z"]);
}

#[test]
fn fua_is_durable_when_it_returns() {
    let mut oracle = oracle(Promise::Flush);
    let write = oracle.write_begins(ALL, WriteContent::Stamps, true);
    judge(&oracle, 0, &["0z0z", "1111"], &[]);
    oracle.write_ends(write, true, Nanos(0));
    judge(&oracle, 0, &["1111"], &["1110", "111z"]);
    let zeroes = oracle.write_begins(Extent::new(Lba(1), 1), WriteContent::Zeroes, true);
    oracle.write_ends(zeroes, true, Nanos(0));
    judge(&oracle, 0, &["1z11"], &["1111"]);
}

#[test]
fn always_keeps_every_answered_write() {
    let mut oracle = oracle(Promise::Always);
    wrote(&mut oracle, 0, 2, 0);
    oracle.write_begins(Extent::new(Lba(1), 2), WriteContent::Stamps, false);
    judge(&oracle, 0, &["110z", "122z", "120z"], &["0z0z", "1z0z"]);
}

#[test]
fn ordered_is_a_prefix_and_never_a_mix() {
    let mut oracle = oracle(Promise::Ordered);
    wrote(&mut oracle, 0, 2, 10);
    wrote(&mut oracle, 2, 1, 20);
    wrote(&mut oracle, 0, 1, 30);
    oracle.write_begins(Extent::new(Lba(3), 1), WriteContent::Zeroes, false);
    judge(&oracle, 0, &["0z0z", "110z", "112z", "312z"], &["1z0z", "0z2z", "310z", "3z0z"]);
    // Zeroes over zeroes cannot be told from nothing; both readings are tried.
    judge(&oracle, 115, &["110z", "312z"], &["0z0z"]);
    judge(&oracle, 131, &["312z"], &["112z", "0z0z"]);
}

#[test]
fn reads_see_the_last_answered_write_or_a_later_one() {
    let mut oracle = oracle(Promise::Flush);
    let write = oracle.write_begins(Extent::new(Lba(0), 1), WriteContent::Stamps, false);
    let early = oracle.read_begins(Extent::new(Lba(0), 1));
    oracle.write_ends(write, true, Nanos(0));
    let late = oracle.read_begins(Extent::new(Lba(0), 1));
    let sector = |write| {
        let mut bytes = [0; 512];
        stamp::stamp(&mut bytes, Lba(0), write, 7);
        bytes
    };
    assert_eq!(oracle.read_ends(&early, &sector(0)), Ok(()));
    assert_eq!(oracle.read_ends(&early, &sector(1)), Ok(()));
    assert_eq!(oracle.read_ends(&late, &sector(1)), Ok(()));
    assert!(oracle.read_ends(&late, &sector(0)).is_err());
    assert!(oracle.read_ends(&late, &[0; 512]).is_err());
}

#[test]
fn what_was_recovered_stays() {
    let mut oracle = oracle(Promise::Flush);
    wrote(&mut oracle, 0, 2, 0);
    oracle.recovered(&found("1z0z"));
    judge(&oracle, 0, &["1z0z"], &["110z", "0z0z"]);
    assert_eq!(wrote(&mut oracle, 0, 1, 0), 2, "numbers go on");
    judge(&oracle, 0, &["1z0z", "2z0z"], &["0z0z"]);
    oracle.stopped();
    judge(&oracle, 0, &["2z0z"], &["1z0z"]);
}

#[test]
fn what_a_new_process_found_is_durable_only_after_a_flush() {
    let mut oracle = oracle(Promise::Flush);
    wrote(&mut oracle, 0, 2, 0);
    flushed(&mut oracle);
    wrote(&mut oracle, 1, 2, 0);
    oracle.write_begins(Extent::new(Lba(3), 1), WriteContent::Stamps, false);
    // Write 2 was in RAM only, write 3 got through.
    oracle.killed(&found("1103"));
    judge(&oracle, 0, &["110z", "1103", "122z"], &["0z0z"]);
    flushed(&mut oracle);
    judge(&oracle, 0, &["1103"], &["110z", "1203"]);
}

#[test]
fn nothing_is_known_of_what_was_discarded_until_it_is_written() {
    let mut oracle = oracle(Promise::Flush);
    let discard = oracle.write_begins(Extent::new(Lba(0), 1), WriteContent::Unknown, false);
    oracle.write_ends(discard, true, Nanos(0));
    flushed(&mut oracle);
    judge(&oracle, 0, &["0z0z", "zz0z"], &["xz0z", "010z"]);
    assert!(oracle.are_same(&found("0z0z"), &found("zz0z")));
    assert!(!oracle.are_same(&found("0z0z"), &found("010z")));
    oracle.recovered(&found("0z0z"));
    judge(&oracle, 0, &["0z0z", "zz0z"], &["010z"]);
    let write = wrote(&mut oracle, 0, 1, 0);
    assert_eq!(write, 2);
    flushed(&mut oracle);
    judge(&oracle, 0, &["2z0z"], &["zz0z", "0z0z"]);
}
