//! An option as a value, and the macro that turns the one list of options into structs and a table.

use toml::Value;

use super::kind::Kind;
use super::sections::Config;

/// Whether an option has an effect in this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All of its values work.
    Implemented,
    /// Only its default is accepted: the feature comes later.
    NotYet,
}

/// One option: its key, its values, its meaning, and how to reach it in a [`Config`].
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// The section, which is the part of the key before the dot.
    pub section: &'static str,
    /// The part of the key after the dot.
    pub name: &'static str,
    /// What it means, one sentence or more.
    pub meaning: &'static str,
    /// The values it takes.
    pub kind: Kind,
    /// Whether it has an effect yet.
    pub status: Status,
    pub(crate) get: fn(&Config) -> Value,
    /// False where the field cannot hold the value.
    pub(crate) put: fn(&mut Config, &Value) -> bool,
}

impl OptionSpec {
    /// The whole key: `train.seed`.
    pub fn key(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// The value nobody has to give.
    pub fn default(&self) -> Value {
        (self.get)(&Config::default())
    }
}

/// `r#type` is `type` to the user.
pub(crate) const fn plain(field: &'static str) -> &'static str {
    match field.as_bytes() {
        [b'r', b'#', ..] => field.split_at(2).1,
        _ => field,
    }
}

/// From `section: Struct { /// meaning  field: type = default, kind, status; }` makes a struct for
/// every section, [`Config`] that holds them, and the table of all options. A list beside the
/// structs would be a second source of truth, and would in time tell another story.
macro_rules! options {
    ($(
        $(#[doc = $about:literal])+
        $section:ident: $struct:ident {$(
            $(#[doc = $meaning:literal])+
            $field:ident: $type:ty = $default:expr, $kind:expr, $status:ident;
        )+}
    )+) => {
        $(
            $(#[doc = $about])+
            #[derive(Clone, Debug, PartialEq)]
            pub struct $struct {$(
                $(#[doc = $meaning])+
                #[doc = concat!("\n\nDefault: `", stringify!($default), "`.")]
                pub $field: $type,
            )+}

            impl Default for $struct {
                fn default() -> Self {
                    Self {$( $field: $default, )+}
                }
            }
        )+

        /// The resolved configuration: one field a section.
        ///
        /// Its fields may be set directly; then [`Config::validate`] has not seen them yet.
        #[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
        #[serde(into = "toml::Table", try_from = "toml::Table")]
        pub struct Config {
            $(
                $(#[doc = $about])+
                pub $section: $struct,
            )+
            /// What was given for a key, and where; kept for messages.
            pub(crate) given: std::collections::BTreeMap<String, (toml::Value, $crate::config::Origin)>,
        }

        /// Every option there is, by section: the one source of the structs, the checks and the
        /// documentation.
        pub const OPTIONS: &[$crate::config::OptionSpec] = &[$($(
            $crate::config::OptionSpec {
                section: stringify!($section),
                name: $crate::config::option::plain(stringify!($field)),
                meaning: concat!($($meaning),+),
                kind: $kind,
                status: $crate::config::Status::$status,
                get: |config| $crate::config::ToSetting::to_setting(&config.$section.$field),
                put: |config, value| match $crate::config::FromSetting::from_setting(value) {
                    Some(field) => {
                        config.$section.$field = field;
                        true
                    }
                    None => false,
                },
            },
        )+)+];
    };
}
pub(crate) use options;
