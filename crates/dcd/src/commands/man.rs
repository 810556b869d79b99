//! `dcd man`: a manual page for the program and for each command, and one for stack files.

use clap::CommandFactory;
use dcd_trace::Inputs;

use crate::cli::{Cli, Man};
use crate::failure::Failure;

pub fn run(args: &Man) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.directory).map_err(|e| Failure::io(args.directory.display(), e))?;
    clap_mangen::generate_to(Cli::command(), &args.directory)
        .map_err(|e| Failure::io(args.directory.display(), e))?;
    let path = args.directory.join("dcd-stack.5");
    Ok(Inputs::default().write(&path, stack_page())?)
}

/// The reference of stack files as a page: its text is already laid out.
fn stack_page() -> String {
    let mut page =
        String::from(".TH dcd-stack 5\n.SH NAME\ndcd-stack \\- stack files of dcd\n.SH DESCRIPTION\n.nf\n");
    for line in dcd_stack::REFERENCE.lines() {
        // A line must not begin with a control character of roff, and a backslash begins an escape.
        page.push_str("\\&");
        page.push_str(&line.replace('\\', "\\e").replace('-', "\\-"));
        page.push('\n');
    }
    page.push_str(".fi\n.SH SEE ALSO\n.BR dcd (1)\n");
    page
}
