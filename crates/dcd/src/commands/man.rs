//! `dcd man`: a manual page for the program and for each command, and one for stack files.

use dcd_stack::Inputs;

use crate::cli::Man;
use crate::failure::Failure;

pub fn run(args: &Man, command: clap::Command) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.directory).map_err(|e| Failure::io(args.directory.display(), e))?;
    let name = format!("{}-stack", command.get_name());
    clap_mangen::generate_to(command, &args.directory)
        .map_err(|e| Failure::io(args.directory.display(), e))?;
    let path = args.directory.join(format!("{name}.5"));
    Ok(Inputs::default().write(&path, stack_page(&name))?)
}

/// The reference of stack files as a page: its text is already laid out.
fn stack_page(name: &str) -> String {
    let mut page = format!(".TH {name} 5\n.SH NAME\n{name} \\- stack files of dcd\n.SH DESCRIPTION\n.nf\n");
    for line in dcd_stack::reference().lines() {
        // A line must not begin with a control character of roff, and a backslash begins an escape.
        page.push_str("\\&");
        page.push_str(&line.replace('\\', "\\e").replace('-', "\\-"));
        page.push('\n');
    }
    page.push_str(".fi\n.SH SEE ALSO\n.BR dcd (1)\n");
    page
}
