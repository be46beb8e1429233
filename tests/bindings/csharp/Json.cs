/* SPDX-License-Identifier: Apache-2.0 */
using System;

/// <summary>Checks that a text is JSON: the plain class library has no reader.</summary>
internal sealed class Json
{
    private readonly string text;
    private int at;

    private Json(string text)
    {
        this.text = text;
    }

    internal static void Check(string text)
    {
        Json json = new Json(text);
        json.Value();
        json.Space();
        if (json.at != text.Length)
        {
            throw json.Error("text after the value");
        }
    }

    private FormatException Error(string what)
    {
        return new FormatException(what + " at " + at + " of: " + text);
    }

    private void Space()
    {
        while (at < text.Length && " \t\r\n".IndexOf(text[at]) >= 0)
        {
            at++;
        }
    }

    private char Next()
    {
        Space();
        if (at == text.Length)
        {
            throw Error("end of text");
        }
        return text[at];
    }

    private void Expect(string word)
    {
        Space();
        if (string.CompareOrdinal(text, at, word, 0, word.Length) != 0)
        {
            throw Error("expected " + word);
        }
        at += word.Length;
    }

    private void Value()
    {
        switch (Next())
        {
            case '{':
                List("{", "}", true);
                break;
            case '[':
                List("[", "]", false);
                break;
            case '"':
                String();
                break;
            case 't':
                Expect("true");
                break;
            case 'f':
                Expect("false");
                break;
            case 'n':
                Expect("null");
                break;
            default:
                Number();
                break;
        }
    }

    private void List(string open, string close, bool named)
    {
        Expect(open);
        if (Next() != close[0])
        {
            while (true)
            {
                if (named)
                {
                    String();
                    Expect(":");
                }
                Value();
                if (Next() != ',')
                {
                    break;
                }
                at++;
            }
        }
        Expect(close);
    }

    private void String()
    {
        Expect("\"");
        while (at < text.Length && text[at] != '"')
        {
            at += text[at] == '\\' ? 2 : 1;
        }
        Expect("\"");
    }

    private void Number()
    {
        int start = at;
        while (at < text.Length && "+-.eE0123456789".IndexOf(text[at]) >= 0)
        {
            at++;
        }
        if (start == at)
        {
            throw Error("not a value");
        }
    }
}
