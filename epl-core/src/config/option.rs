//! The macro that turns the one list of options into structs and a table.

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
            pub(crate) given: std::collections::BTreeMap<String, (toml::Value, Origin)>,
        }

        /// Every option there is, by section: the one source of the structs, the checks and the
        /// documentation.
        pub const OPTIONS: &[OptionSpec] = &[$($(
            OptionSpec {
                section: stringify!($section),
                name: $crate::config::option::plain(stringify!($field)),
                meaning: concat!($($meaning),+),
                kind: $kind,
                status: Status::$status,
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
