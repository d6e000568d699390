//! Commands: the trait each one implements, the table entry made from it, and how it is run.
//!
//! An extension lists its commands in a `const` table ([`crate::extensions`]); nothing registers itself at run time.

pub mod dispatch;
pub mod entry;
pub mod run;
pub mod store;

pub use entry::{Command, CommandEntry, Context, Extension, Mode};
pub use store::CommandStore;
