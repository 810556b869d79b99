//! Doc comments begin with a noun or a verb, so that the first words say what is documented.

use super::documented_tests::sources;

const OPENERS: [&str; 17] = [
    "What", "Whether", "Where", "How", "When", "Which", "Who", "Whose", "Of", "It", "Its", "The same", "One",
    "Nobody", "Nothing", "Somebody", "So many",
];

fn opens_badly(comment: &str) -> bool {
    OPENERS.iter().any(|opener| {
        comment
            .strip_prefix(opener)
            .is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
    })
}

#[test]
fn no_doc_comment_begins_with_a_question_word_or_a_pronoun() {
    assert!(opens_badly("Of a leg") && opens_badly("Its size.") && !opens_badly("Offset of a leg"));
    let (mut comments, mut bad) = (0, String::new());
    for (path, text) in sources() {
        let mut marker_before = None;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let marker = ["///", "//!"].into_iter().find(|marker| line.starts_with(marker));
            if let Some(marker) = marker.filter(|_| marker != marker_before) {
                let comment = line[marker.len()..].trim_start();
                comments += 1;
                if opens_badly(comment) {
                    bad += &format!("\n{}:{}: {comment}", path.display(), number + 1);
                }
            }
            marker_before = marker;
        }
    }
    assert!(comments > 3000, "{comments} doc comments");
    assert!(bad.is_empty(), "doc comments that begin with a question word or a pronoun:{bad}");
}
