//! Opens stacks for the commands. Commands use this folder, and nothing here depends on a command. A file uses only its own stage of
//! this table and the stages above.
//!
//! | file                | what it does                                                                             |
//! |---------------------|------------------------------------------------------------------------------------------|
//! | record/             | *told*: the attachment record of a data disk, and what it admits                         |
//! | choice, below, site | which log cache or array of a stack file a command is about; what a part lies on         |
//! | machine, system     | *seen*: which machine this is, and what it is started from                               |
//! | waiting             | names a device that does not answer                                                      |
//! | devices, probe      | opens, locks and holds the devices, and drives them without clients; recognises content  |
//! | running, started    | the records of caches that run; parts of a started stack as devices                      |
//! | members             | what the superblocks of an array say of its devices                                      |
//! | absent, judge       | *judged*, by what was seen and asked: what a start leaves out; if it is refused          |
//! | survey              | looks at arrays, logs and records, and starts parts of a stack: a look is a start, too   |
//! | start               | leaves out missing devices, at once or after waiting for them                            |
//! | open                | opens the log and the data disk of a cache                                               |
//! | overwrite, tell     | what must not be overwritten; what the members of an array tell of the caches on it      |
//! | take_over           | takes a stack over from another machine                                                  |
//! | stack_text          | writes changed settings to a stack file                                                  |
//! | serving/            | what is admitted before a stack is served, the server's host, and its watch over devices |

pub mod absent;
pub mod below;
pub mod choice;
pub mod devices;
pub mod journal;
pub mod judge;
pub mod machine;
pub mod members;
pub mod open;
pub mod overwrite;
pub mod probe;
pub mod random;
pub mod record;
pub mod running;
pub mod serving;
pub mod site;
pub mod stack_text;
pub mod start;
pub mod started;
pub mod survey;
pub mod system;
pub mod take_over;
pub mod tell;
pub mod waiting;
