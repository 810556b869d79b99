//! Opens stacks for the commands. Commands use this folder, and nothing here depends on a command.
//!
//! | file              | what it does                                                                             |
//! |-------------------|------------------------------------------------------------------------------------------|
//! | choice            | which log cache or array of a stack file a command is about                              |
//! | below             | what a part of a stack file lies on                                                      |
//! | devices           | opens and locks the devices, and drives them without clients                             |
//! | record/           | the attachment record of a data disk, and what it admits                                 |
//! | running, started  | the records of caches that run; parts of a started stack as devices                      |
//! | members           | what the superblocks of an array say of its devices                                      |
//! | open              | starts parts of a stack, and looks at logs, records and members                          |
//! | absent, admit     | what a start can do without; which log caches it may start                               |
//! | overwrite, probe  | what must not be overwritten                                                             |
//! | machine           | which machine this is, and how it takes over from another one                            |
//! | system            | what the machine is started from                                                         |
//! | tell              | what the members of an array tell of the caches on it                                    |
//! | serving/          | what is admitted before a stack is served, the server's host, and its watch over devices |
//!
//! `open`, `absent` and `admit` call each other: a start admits the caches below, and admitting one opens its log.

pub mod absent;
pub mod admit;
pub mod below;
pub mod choice;
pub mod devices;
pub mod machine;
pub mod members;
pub mod open;
pub mod overwrite;
pub mod probe;
pub mod random;
pub mod record;
pub mod running;
pub mod serving;
pub mod started;
pub mod system;
pub mod tell;
