//! Writing an image to a disk in one pass.
//!
//! [`source`] is what the pipeline asks of a download.

pub mod source;
