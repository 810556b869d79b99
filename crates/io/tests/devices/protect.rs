//! Protection is as much as the process may have, and never stands in the way of memory.

#[test]
fn rule_14_a_protected_process_still_gets_memory() {
    let protection = dcd_io::protect_process();
    println!("{protection:?}");
    protection.timer_slack.expect("anyone may ask for exact timers");
    let memory = vec![1u8; 256 << 20];
    assert_eq!(memory[memory.len() - 1], 1);
}
