//! A model that is ready to run: weights and tokeniser of one file, memory for its keys and values, and the requests.

use std::path::Path;

use crate::download::{SMOLLM2_135M, models_dir};
use crate::engine::{Kv, Request, Settings};
use crate::error::Error;
use crate::model::{Config, Gguf, Model, ModelError};
use crate::options::{Options, Prompt};
use crate::tokenizer::{ChatTemplate, Message, Tokenizer, TokenizerError};

/// A model, its tokeniser, and all that the requests of a command line need to run on it.
#[derive(Debug)]
pub struct Loaded {
    /// The weights.
    pub model: Model,
    /// The vocabulary.
    pub tokenizer: Tokenizer,
    /// In the order of the prompts; each can be served.
    pub requests: Vec<Request>,
    /// Memory for keys and values.
    pub kv: Kv,
}

impl Loaded {
    /// Finds or fetches the model that `options` want, reads it and tokenises the prompts.
    ///
    /// What is cheap to refuse is refused before weights are read.
    ///
    /// # Errors
    /// [`Error`], for anything that stands in the way of running.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let path = match &options.model {
            Some(path) => path.clone(),
            None => SMOLLM2_135M.find_or_fetch(&models_dir(&SMOLLM2_135M)?)?,
        };
        let load = |source: ModelError| Error::Load { path: path.clone(), source };
        let gguf = Gguf::open(&path).map_err(|e| load(e.into()))?;
        let config = Config::from_gguf(&gguf).map_err(|e| load(e.into()))?;
        let (tokenizer, prompt_ids) = tokenise(&gguf, &config, options, &path)?;
        let requests = Request::from_options(options, &prompt_ids);
        let settings = Settings::new(options, &config, &requests, path.display().to_string())?;
        let kv = Kv::new(&config, settings)?;
        let model = Model::load(&gguf, options.weights).map_err(load)?;
        Ok(Self { model, tokenizer, requests, kv })
    }
}

fn tokenise(gguf: &Gguf, config: &Config, options: &Options, path: &Path) -> Result<(Tokenizer, Vec<Vec<u32>>), Error> {
    let refuse = |source: TokenizerError| Error::Tokenizer { path: path.into(), source };
    let tokenizer = Tokenizer::from_gguf(gguf).map_err(refuse)?;
    let (tokens, rows) = (tokenizer.vocab_len(), config.vocab_len);
    if tokens != rows {
        let what = format!("{tokens} tokens for {rows} rows of the embedding");
        return Err(refuse(TokenizerError::Inconsistent(what)));
    }
    let chat = options.chat.then(|| ChatTemplate::from_gguf(gguf, &tokenizer));
    let chat = chat.transpose().map_err(refuse)?;
    let mut prompt_ids = Vec::with_capacity(options.prompts.len());
    for prompt in &options.prompts {
        let text = match &chat {
            Some(chat) => {
                let messages = messages(prompt);
                let forged = messages.iter().find_map(|message| tokenizer.control_token_in(&message.content));
                if let Some(token) = forged {
                    return Err(refuse(TokenizerError::SpecialInChat(token.into())));
                }
                chat.render(&messages).map_err(refuse)?
            }
            None => prompt.text.clone(),
        };
        let ids = tokenizer.encode(&text).map_err(refuse)?;
        prompt_ids.push(ids);
    }
    Ok((tokenizer, prompt_ids))
}

fn messages(prompt: &Prompt) -> Vec<Message> {
    let system = prompt.system.iter().map(|text| Message { role: "system", content: text.clone() });
    let user = Message { role: "user", content: prompt.text.clone() };
    system.chain([user]).collect()
}
