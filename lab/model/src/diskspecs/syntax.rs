//! The syntax of DiskSim's parameter files: blocks of `key = value`, separated by commas, whose keys have blanks.

use super::ImportError;

/// Blocks in blocks, and files that name files: no file of a drive comes near.
const DEPTH_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    List(Vec<Value>),
    Block(SpecBlock),
}

/// `kind name { items }`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SpecBlock {
    pub kind: String,
    pub name: String,
    pub items: Vec<(String, Value)>,
    pub line: usize,
}

/// Reads another file that a file names.
pub(super) type Include<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// All blocks of a file, and of those that it names.
pub(super) fn parse(text: &str, include: Include<'_>) -> Result<Vec<SpecBlock>, ImportError> {
    parse_at(text, include, 0)
}

fn parse_at(text: &str, include: Include<'_>, depth: usize) -> Result<Vec<SpecBlock>, ImportError> {
    let mut parser = Parser { rest: text, line: 1, include, depth };
    let mut blocks = Vec::new();
    loop {
        parser.skip();
        let begins = parser.line;
        let head = parser.until(&['{', '[', '\n', '#']).trim().to_owned();
        match parser.rest.chars().next() {
            Some('{') => blocks.push(parser.block(&head, begins)?),
            // The topology, and what is an instance of what.
            Some('[') => {
                parser.skip_brackets();
                parser.until(&['\n']);
            }
            next => {
                if let Some(file) = head.strip_prefix("source ") {
                    blocks.extend(parser.included(file)?);
                } else if !head.is_empty() && head != "}" {
                    return Err(ImportError::syntax(begins, format!("\"{head}\" is no block")));
                } else if next.is_none() {
                    return Ok(blocks);
                }
            }
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    line: usize,
    include: Include<'a>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    /// Blanks, commas and comments.
    fn skip(&mut self) {
        loop {
            let blank = self.rest.find(|c: char| !c.is_whitespace() && c != ',').unwrap_or(self.rest.len());
            self.take(blank);
            if !self.rest.starts_with('#') {
                return;
            }
            self.until(&['\n']);
        }
    }

    /// The text before the next of some characters.
    fn until(&mut self, ends: &[char]) -> &'a str {
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        self.take(end)
    }

    /// From one `[` to the `]` that ends it.
    fn skip_brackets(&mut self) {
        let mut open = 0;
        while let Some(next) = self.rest.chars().next() {
            match next {
                '[' => open += 1,
                ']' => open -= 1,
                '#' => {
                    self.until(&['\n']);
                    continue;
                }
                _ => {}
            }
            self.take(next.len_utf8());
            if open == 0 {
                return;
            }
        }
    }

    fn included(&self, file: &str) -> Result<Vec<SpecBlock>, ImportError> {
        self.check_depth()?;
        let file = file.trim();
        let text = (self.include)(file).map_err(|why| {
            ImportError::syntax(self.line, format!("the file \"{file}\" that it names: {why}"))
        })?;
        parse_at(&text, self.include, self.depth + 1)
    }

    fn check_depth(&self) -> Result<(), ImportError> {
        match self.depth < DEPTH_MAX {
            true => Ok(()),
            false => Err(ImportError::syntax(self.line, "blocks or files are nested too deep")),
        }
    }

    /// Reads a block: it begins with `{`.
    fn block(&mut self, head: &str, line: usize) -> Result<SpecBlock, ImportError> {
        self.check_depth()?;
        self.depth += 1;
        self.take(1);
        let (kind, name) = head.split_once(char::is_whitespace).unwrap_or((head, ""));
        let mut block =
            SpecBlock { kind: kind.to_owned(), name: name.trim().to_owned(), items: Vec::new(), line };
        loop {
            self.skip();
            if self.rest.is_empty() {
                return Err(ImportError::syntax(line, format!("the block \"{head}\" has no end")));
            }
            if self.rest.starts_with('}') {
                self.take(1);
                self.depth -= 1;
                return Ok(block);
            }
            let begins = self.line;
            let key = self.until(&['=', '{', '}', '\n']).trim();
            if !self.rest.starts_with('=') {
                return Err(ImportError::syntax(begins, format!("\"{key}\" has no value")));
            }
            self.take(1);
            let value = self.value()?;
            block.items.push((key.to_owned(), value));
        }
    }

    fn value(&mut self) -> Result<Value, ImportError> {
        self.skip();
        if self.rest.starts_with('[') {
            return self.list().map(Value::List);
        }
        let begins = self.line;
        let text = self.until(&[',', '{', '}', ']', '\n', '#']).trim();
        if self.rest.starts_with('{') {
            return self.block(text, begins).map(Value::Block);
        }
        match text.strip_prefix("source ") {
            None => Ok(Value::Text(text.to_owned())),
            Some(file) => {
                let block = self.included(file)?.into_iter().next();
                block.map(Value::Block).ok_or_else(|| {
                    ImportError::syntax(begins, format!("the file \"{}\" has no block", file.trim()))
                })
            }
        }
    }

    /// Reads a list: it begins with `[`.
    fn list(&mut self) -> Result<Vec<Value>, ImportError> {
        self.check_depth()?;
        self.depth += 1;
        let line = self.line;
        self.take(1);
        let mut values = Vec::new();
        loop {
            self.skip();
            if self.rest.is_empty() {
                return Err(ImportError::syntax(line, "the list has no end"));
            }
            if self.rest.starts_with(']') {
                self.take(1);
                self.depth -= 1;
                return Ok(values);
            }
            let before = self.rest.len();
            values.push(self.value()?);
            if self.rest.len() == before {
                return Err(ImportError::syntax(self.line, "the list has something that is no value"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get<'a>(block: &'a SpecBlock, key: &str) -> Option<&'a Value> {
        block.items.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    #[test]
    fn blocks_lists_comments_and_other_files() {
        let text = "# a drive\ndisksim_disk A {\n  Model = source a.model,\n  Segment size (in blks) = 12, # a comment\n\
                    \x20 Scheduler = disksim_ioqueue { x = 1 },\n  l = [ 1, 2 # two\n ]\n}\ninstantiate [ d ] as A\n\
                    topology driver d [\n bus b [ # ]\n disk d []\n ]\n]\n";
        let model = "dm_disk A.model {\n Zones = [ zone { First = 0 }, zone { First = 5, } ]\n}";
        let include = |file: &str| match file {
            "a.model" => Ok(model.to_owned()),
            _ => Err("there is none".to_owned()),
        };
        let blocks = parse(text, &include).unwrap();
        assert_eq!(
            (blocks.len(), blocks[0].kind.as_str(), blocks[0].name.as_str()),
            (1, "disksim_disk", "A")
        );
        assert_eq!(get(&blocks[0], "Segment size (in blks)"), Some(&Value::Text("12".to_owned())));
        assert!(
            matches!(get(&blocks[0], "Scheduler"), Some(Value::Block(block)) if block.kind == "disksim_ioqueue")
        );
        assert!(matches!(get(&blocks[0], "l"), Some(Value::List(list)) if list.len() == 2));
        let Some(Value::Block(model)) = get(&blocks[0], "Model") else { panic!("{blocks:?}") };
        assert!(matches!(get(model, "Zones"), Some(Value::List(zones)) if zones.len() == 2));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let none = |_: &str| Err("it is missing".to_owned());
        for (text, says) in [
            ("a b {\n x = 1,\n", "line 1: the block \"a b\" has no end"),
            ("a b {\n x,\n}", "line 2: \"x,\" has no value"),
            ("a b {\n m = source f.model\n}", "line 2: the file \"f.model\" that it names: it is missing"),
            ("a b {\n l = [ 1,\n", "line 2: the list has no end"),
            ("words\n", "line 1: \"words\" is no block"),
        ] {
            let said = parse(text, &none).unwrap_err().to_string();
            assert!(said.contains(says), "{text}: {said}");
        }
        let deep = "a = b {".repeat(100);
        assert!(parse(&format!("x {{{deep}"), &none).unwrap_err().to_string().contains("nested too deep"));
        let itself = |_: &str| Ok("source me".to_owned());
        assert!(parse("source me", &itself).unwrap_err().to_string().contains("nested too deep"));
    }
}
