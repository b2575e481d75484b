//! The file that `--plot` names.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("--plot {}: cannot be written: {source}", path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// A file that can be written to; what it held stays until the picture is there, and nothing is left where none comes.
#[derive(Debug)]
pub struct PlotFile {
    path: PathBuf,
    /// It was not there before and holds nothing yet.
    fresh: bool,
}

impl PlotFile {
    /// Sees to it that a picture can go to this path.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn open(path: &Path) -> Result<Self, WriteError> {
        let failed = |source| WriteError { path: path.to_owned(), source };
        let fresh = !path.exists();
        OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), fresh })
    }

    /// Writes the picture.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(mut self, svg: &str) -> Result<(), WriteError> {
        let failed = |source| WriteError { path: self.path.clone(), source };
        let mut file = fs::File::create(&self.path).map_err(failed)?;
        file.write_all(svg.as_bytes()).map_err(failed)?;
        self.fresh = false;
        Ok(())
    }
}

impl Drop for PlotFile {
    fn drop(&mut self) {
        if self.fresh {
            // There is an error already, which says more.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_without_a_picture_and_what_was_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.svg");
        drop(PlotFile::open(&path).unwrap());
        assert!(!path.exists());
        PlotFile::open(&path).unwrap().write("<svg/>").unwrap();
        drop(PlotFile::open(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "<svg/>");
        assert!(PlotFile::open(&folder.path().join("none/plot.svg")).is_err());
    }
}
