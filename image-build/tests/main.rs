//! Tests of whole images and of the built agent; one program, so that they are linked once.

#[cfg(test)]
mod agent;
#[cfg(test)]
mod image;
#[cfg(test)]
mod programs;
#[cfg(test)]
mod support;
