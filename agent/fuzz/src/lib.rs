//! Fuzz targets of what reads foreign bytes: images, partition tables, lists, config drives.
//!
//! The targets themselves are plain functions, so that a test of the disk crate can run them over the corpus too.

pub mod targets;
