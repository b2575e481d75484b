//! A storage with content, and the answers to requests.

use std::fs;
use std::time::Instant;

use paged_kv::BlockId;
use paged_kv::layout::{KvLayout, KvShape};
use paged_kv::step::{Step, TableRow};
use paged_kv::storage::{AttendParams, CpuStorage, CpuTensor, CpuTensorMut, KvStorage};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::request::{Prepare, Request};

const Q_HEADS: u32 = 32;
const KV_HEADS: u32 = 8;
const HEAD_DIM: u32 = 128;
const BLOCK_SIZE: u32 = 16;

/// Answers requests, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Server {
    session: Option<Session>,
    threads: Option<ThreadPool>,
}

#[derive(Debug)]
struct Session {
    storage: CpuStorage,
    layers: u32,
    /// The layer that comes next.
    next: u32,
    q: Vec<f32>,
    out: Vec<f32>,
    shape: [usize; 3],
}

impl Server {
    /// The answer to a request, or one line that says what is wrong with it.
    pub(crate) fn answer(&mut self, request: Request) -> Result<String, String> {
        match request {
            Request::Threads(threads) => {
                self.threads = Some(ThreadPoolBuilder::new().num_threads(threads).build().map_err(text)?);
                Ok("ready".to_owned())
            }
            Request::Prepare(prepare) => {
                // The old one goes first: there may not be memory for both.
                self.session = None;
                self.session = Some(Session::new(&prepare)?);
                Ok("ready".to_owned())
            }
            Request::Run(layers) => {
                let start = Instant::now();
                self.run(|session| (0..layers).try_for_each(|_| session.attend_next()))?;
                Ok(format!("ns {}", start.elapsed().as_nanos()))
            }
            Request::Output(path) => {
                self.run(|session| session.attend(0))?;
                let out = self.session.iter().flat_map(|session| &session.out);
                fs::write(&path, out.flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).map_err(text)?;
                Ok("written".to_owned())
            }
        }
    }

    /// Runs something on the threads that were asked for, or on all.
    fn run(&mut self, work: impl FnOnce(&mut Session) -> Result<(), String> + Send) -> Result<(), String> {
        let session = self.session.as_mut().ok_or("nothing is prepared")?;
        match &self.threads {
            Some(threads) => threads.install(|| work(session)),
            None => work(session),
        }
    }
}

impl Session {
    fn new(prepare: &Prepare) -> Result<Self, String> {
        let Prepare { dtype, batch, context, tokens, layers, seed, ref path } = *prepare;
        let blocks = context.div_ceil(BLOCK_SIZE);
        let num_blocks = batch.checked_mul(blocks).ok_or("there are too many blocks")?;
        let shape = KvShape::new(layers, KV_HEADS, HEAD_DIM, dtype);
        let mut storage =
            CpuStorage::new(KvLayout::per_layer(&shape, num_blocks, BLOCK_SIZE).map_err(text)?).map_err(text)?;

        let [q_shape, kv_shape] = [(tokens, Q_HEADS), (context, KV_HEADS)]
            .map(|(tokens, heads)| [at(batch) * at(tokens), at(heads), at(HEAD_DIM)]);
        let numbers = read(path)?;
        let [q_len, kv_len] = [q_shape, kv_shape].map(|shape| shape.iter().product::<usize>());
        if numbers.len() != q_len + 2 * kv_len {
            return Err(format!("{} holds {} numbers, not {}", path.display(), numbers.len(), q_len + 2 * kv_len));
        }
        let (q, kv) = numbers.split_at(q_len);
        let (k, v) = kv.split_at(kv_len);

        let table = shuffled(num_blocks, seed);
        let step = |start| {
            let rows: Vec<TableRow<'_>> =
                table.chunks_exact(at(blocks)).map(|blocks| TableRow { start, len: context - start, blocks }).collect();
            Step::from_tables(BLOCK_SIZE, &rows, &[]).map_err(text)
        };
        storage.prepare((), &step(0)?, batch).map_err(text)?;
        for layer in 0..layers {
            let (k, v) = (CpuTensor::new(k, kv_shape), CpuTensor::new(v, kv_shape));
            storage.write_kv((), layer, k, v).map_err(text)?;
        }
        storage.prepare((), &step(context - tokens)?, batch).map_err(text)?;
        Ok(Self { storage, layers, next: 0, q: q.to_vec(), out: vec![0.0; q_len], shape: q_shape })
    }

    fn attend(&mut self, layer: u32) -> Result<(), String> {
        let out = CpuTensorMut::new(&mut self.out, self.shape);
        let q = CpuTensor::new(&self.q, self.shape);
        self.storage.attend((), layer, q, out, &AttendParams::new(HEAD_DIM)).map_err(text)
    }

    fn attend_next(&mut self) -> Result<(), String> {
        let layer = self.next;
        self.next = (layer + 1) % self.layers;
        self.attend(layer)
    }
}

/// The numbers of a file.
fn read(path: &std::path::Path) -> Result<Vec<f32>, String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let number = |bytes: &[u8]| bytes.try_into().map(f32::from_le_bytes).map_err(text);
    bytes.chunks(4).map(number).collect()
}

/// All blocks, in an order that follows from the seed (Fisher and Yates; xorshift).
fn shuffled(num_blocks: u32, seed: u64) -> Vec<BlockId> {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut blocks: Vec<BlockId> = (0..num_blocks).map(BlockId::new).collect();
    for (last, choices) in (1..blocks.len()).zip(2..) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let chosen = usize::try_from(state % choices).expect("it is at most `last`");
        blocks.swap(last, chosen);
    }
    blocks
}

fn at(number: u32) -> usize {
    usize::try_from(number).expect("a machine with a pool in memory has 32-bit indices")
}

fn text(error: impl core::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for what must be answered.
    #[track_caller]
    fn ask(server: &mut Server, line: &str) -> String {
        server.answer(line.parse().unwrap()).unwrap()
    }

    #[test]
    fn a_session_gives_the_mean_of_v_where_all_keys_are_zero() {
        let dir = std::env::temp_dir().join(format!("peers-attention-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (input, output) = (dir.join("in put"), dir.join("out put"));
        // 2 sequences of 3 tokens, 2 of them queries; q and k are zero, v is the token's number among all 6.
        let q = vec![0.0_f32; 2 * 2 * 32 * 128];
        let k = vec![0.0; 6 * 8 * 128];
        let v = (0_u8..6).flat_map(|token| vec![f32::from(token); 8 * 128]);
        let numbers = q.into_iter().chain(k).chain(v);
        fs::write(&input, numbers.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()).unwrap();

        let mut server = Server::default();
        assert_eq!(server.answer("run 1".parse().unwrap()), Err("nothing is prepared".to_owned()));
        assert_eq!(ask(&mut server, "threads 2"), "ready");
        assert_eq!(ask(&mut server, &format!("prepare f32 2 3 2 2 1 {}", input.display())), "ready");
        assert!(ask(&mut server, "run 3").starts_with("ns "));
        assert_eq!(ask(&mut server, &format!("output {}", output.display())), "written");
        let out = read(&output).unwrap();
        let firsts: Vec<f32> = out.chunks(32 * 128).map(|token| token[0]).collect();
        // Means of 0 1, 0 1 2, 3 4 and 3 4 5.
        assert_eq!(firsts, [0.5, 1.0, 3.5, 4.0]);

        let wrong = server.answer(format!("prepare f32 2 4 2 2 1 {}", input.display()).parse().unwrap());
        assert!(wrong.unwrap_err().contains("numbers, not"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn tables_hold_every_block_once() {
        let mut blocks: Vec<u32> = shuffled(100, 3).into_iter().map(BlockId::get).collect();
        assert!(!blocks.is_sorted());
        blocks.sort_unstable();
        assert_eq!(blocks, (0..100).collect::<Vec<_>>());
        assert_ne!(shuffled(100, 3), shuffled(100, 4));
    }
}
