//! Programs that exist only on paper.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::exec::{Cmd, Exec, ExecError, Output};

/// Answers each command line from a script and keeps what was run. A program that is not in the script is not
/// installed.
#[derive(Debug, Default)]
pub struct ScriptedExec {
    answers: BTreeMap<String, Output>,
    ran: Mutex<Vec<String>>,
}

impl ScriptedExec {
    /// A machine without a single program.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the output of a command line, given as [`Cmd`] prints it.
    #[must_use]
    pub fn with(mut self, command_line: &str, stdout: &str) -> Self {
        self.answers.insert(command_line.to_owned(), Output { stdout: stdout.into(), ..Output::default() });
        self
    }

    /// Adds a command line that ends with a code other than 0.
    #[must_use]
    pub fn failing(mut self, command_line: &str, code: i32, stderr: &str) -> Self {
        let output = Output { code, stderr: stderr.into(), ..Output::default() };
        self.answers.insert(command_line.to_owned(), output);
        self
    }

    /// Command lines that were run or tried, in order.
    pub fn ran(&self) -> Vec<String> {
        self.ran.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Exec for ScriptedExec {
    fn run(&self, cmd: &Cmd) -> Result<Output, ExecError> {
        let line = cmd.to_string();
        self.ran.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
        self.answers.get(&line).cloned().ok_or_else(|| ExecError::NotFound { program: cmd.program.clone() })
    }
}
