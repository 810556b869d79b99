//! Writes a self-contained HTML page around plots and text.

use crate::Plot;

/// A plot: one picture for wide screens, and one with letters as large for a telephone.
pub fn figure(plot: &Plot) -> String {
    format!(
        "<div class=\"wide\">{}</div><figure class=\"narrow\"><figcaption>{}</figcaption>{}</figure>\n",
        plot.svg(),
        escaped(&plot.title),
        plot.svg_narrow()
    )
}

/// A page; `body` is HTML.
pub fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>{title}</title>\
         <style>:root{{color-scheme:light dark}}body{{font:16px sans-serif;max-width:60em;margin:2em auto;padding:0 1em;overflow-wrap:break-word}}\
         svg{{width:100%;height:auto}}@media(prefers-color-scheme:dark){{svg{{filter:invert(1) hue-rotate(180deg)}}}}\
         .narrow{{display:none;margin:1em 0}}figcaption{{font-weight:bold}}\
         @media(max-width:600px){{.wide{{display:none}}.narrow{{display:block}}}}.first{{font-size:1.25em;font-weight:bold}}.table{{overflow-x:auto}}\
         .number{{text-align:right;white-space:nowrap}}\
         pre{{overflow-x:auto;font-size:13px}}table{{border-collapse:collapse}}\
         td,th{{padding:.3em 1em .3em 0;text-align:left;border-bottom:1px solid #8884}}th.number{{text-align:right}}\
         summary{{cursor:pointer;margin:1em 0}}@media(max-width:600px){{table{{font-size:13px}}}}</style></head><body><h1>{title}</h1>\n{body}</body></html>\n"
    )
}

pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
