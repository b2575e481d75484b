//! The chat template of a model: Jinja in the GGUF, rendered as the model was trained with.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind, context};

use super::{Tokenizer, TokenizerError};
use crate::model::gguf::{Gguf, first_line};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// What was said.
    pub content: String,
}

impl Message {
    fn value(&self) -> Value {
        Value::from_pairs([("role", self.role), ("content", self.content.as_str())])
    }
}

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_text: String,
    eos_text: String,
}

impl ChatTemplate {
    /// Compiles the template in the metadata.
    ///
    /// # Errors
    /// [`TokenizerError::Chat`] where there is none or it is no Jinja.
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Self, TokenizerError> {
        match gguf.text("tokenizer.chat_template")? {
            Some(source) => {
                Self::new(source, tokenizer.bos_text().unwrap_or_default(), tokenizer.eos_text().unwrap_or_default())
            }
            None => Err(TokenizerError::Chat("the model has none".into())),
        }
    }

    fn new(source: &str, bos_text: &str, eos_text: &str) -> Result<Self, TokenizerError> {
        let mut environment = Environment::new();
        // As the templates' authors run them: blocks leave no line breaks, Python's methods exist, and a template may
        // refuse a conversation. The date is not given (`strftime_now`), so that the same prompt gives the same ids.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(chat_error)?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |reason: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, reason))
        });
        environment.add_template_owned("chat", source.to_owned()).map_err(chat_error)?;
        Ok(Self { environment, bos_text: bos_text.into(), eos_text: eos_text.into() })
    }

    /// The prompt that asks for the assistant's next message.
    ///
    /// # Errors
    /// [`TokenizerError::Chat`] with the template's own words where it refuses the messages.
    pub fn render(&self, messages: &[Message]) -> Result<String, TokenizerError> {
        let template = self.environment.get_template("chat").map_err(chat_error)?;
        let values = context! {
            messages => messages.iter().map(Message::value).collect::<Vec<_>>(),
            add_generation_prompt => true,
            bos_token => self.bos_text.as_str(),
            eos_token => self.eos_text.as_str(),
        };
        template.render(values).map_err(chat_error)
    }
}

fn chat_error(error: Error) -> TokenizerError {
    TokenizerError::Chat(first_line(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &'static str, content: &str) -> Message {
        Message { role, content: content.into() }
    }

    #[test]
    fn blocks_leave_no_line_breaks_and_the_tokens_are_known() {
        let source = "{{ bos_token }}\n{% for m in messages %}\n[{{ m.role }}] {{ m['content'].strip() }}{{ eos_token }}\n\
                      {% endfor %}\n{% if add_generation_prompt %}\n[assistant]{% endif %}\n";
        let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
        let text = template.render(&[message("user", " hi ")]).unwrap();
        assert_eq!(text, "<s>\n[user] hi</s>\n[assistant]");
    }

    #[test]
    fn template_that_refuses_is_an_error_with_its_reason() {
        let source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}";
        let template = ChatTemplate::new(source, "", "").unwrap();
        let error = template.render(&[message("system", "x")]).unwrap_err().to_string();
        assert!(error.contains("no system role"), "{error}");
        assert_eq!(template.render(&[message("user", "x")]).unwrap(), "");
    }

    #[test]
    fn template_that_does_not_parse_is_an_error_of_one_line() {
        let error = ChatTemplate::new("{% for %}", "", "").unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
